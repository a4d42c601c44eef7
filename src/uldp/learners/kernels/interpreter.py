"""The one compiled function that trains, differentiates, clips and predicts, for every model.

It reads a program (``layout``): the same compiled code serves all models. One call computes a block of users (or
records), one after the other, in a workspace of its own.
"""

from __future__ import annotations

from uldp.learners.kernels import layout as at
from uldp.learners.kernels import objectives, optimisers, pooling
from uldp.learners.kernels.clipping import add_clipped
from uldp.learners.kernels.operations import prepare
from uldp.learners.kernels.passes import backward, forward, gather, loss_gradient
from uldp.learners.kernels.products import MAX_TERMS
from uldp.learners.kernels.randomness import order_records
from uldp.learners.kernels.single import train_single
from uldp.native.jit import entry, kernel, stay_apart
from uldp.native.simd import LANES, first_lane, load, padded_length, spread_like, store


@kernel
def differentiate(ws, iw, uw, fw, program, reals, head, features, labels, records, batch, m, key, step,
                  loaded, stepping):  # fmt: skip
    """The gradient of the mean loss over a batch: records[batch[0..m-1]] of one user, a tile at a time.

    ``loaded`` says that the batch is one tile, and lies there already; ``stepping`` that linear layers take their step
    instead of writing their gradient down.
    """
    stay_apart()
    tile, most = head[at.TILE], fw.size // 3  # room for so many records of a user
    coupled = head[at.LOSS] == objectives.COX
    if coupled:
        # All scores first, then the gradient at all of them; a second pass goes through the layers again.
        for begin in range(0, m, tile):
            count = min(tile, m - begin)
            load_tile(ws, uw, head, features, labels, records, batch, begin, count, key)
            forward(ws, program, reals, head, count, True, uw, step)
            for r in range(count):
                fw[begin + r] = ws[head[at.OUTPUTS] + r * LANES]
                fw[2 * most + begin + r] = labels[records[batch[begin + r]]]
        words, numbers = uw[2 * tile + 2 * most :], iw[head[at.INTEGERS] + 2 * most :]
        objectives.cox(fw, fw[2 * most :], fw[most:], m, words, numbers, words[most:], numbers[most:])
    for begin in range(0, m, tile):
        count = min(tile, m - begin)
        if not loaded:
            load_tile(ws, uw, head, features, labels, records, batch, begin, count, key)
        forward(ws, program, reals, head, count, True, uw, step)
        if coupled:
            for r in range(count):
                ws[head[at.G_OUTPUTS] + r * LANES] = fw[most + begin + r]
        else:
            loss_gradient(ws, head, count, 1.0 / m)
        backward(ws, iw, program, reals, head, count, begin == 0, False, stepping)


@kernel
def load_tile(ws, uw, head, features, labels, records, batch, begin, count, key):
    """Features, labels, and what dropout is addressed by: the user's key and the position in the batch."""
    stay_apart()
    for r in range(count):
        record = records[batch[begin + r]]
        gather(ws, head, features, record, r)
        ws[head[at.LABELS] + r] = labels[record]
        uw[2 * r], uw[2 * r + 1] = key, begin + r


@kernel
def reset(ws, head, start):
    """A new user: the parameters at x, and zeros where kernels read without having written for this user."""
    stay_apart()
    for i in range(0, head[at.PARAMETERS], LANES):
        store(ws, i, load(start, i))
    pooling.fill_zero(ws, head[at.GRADIENTS], head[at.PARAMETERS])
    pooling.fill_zero(ws, head[at.ZERO], head[at.ZEROS])
    pooling.fill_zero(ws, head[at.OFFSETS], padded_length(head[at.N_OUTPUTS]))
    ws[head[at.ONE]] = 1.0


@kernel
def train(ws, iw, uw, fw, program, reals, head, settings, options, features, labels, records, count, keys):
    """Q epochs of mini-batches of one user; options are epochs, batch size and optimiser, settings its numbers."""
    stay_apart()
    epochs, size, optimiser = options[0], options[1], options[2]
    power1, power2, step = 1.0, 1.0, 0
    most = fw.size // 3
    adjusted = settings[3] > 0.0
    if adjusted:
        objectives.label_offsets(
            ws, head[at.OFFSETS], head[at.N_OUTPUTS], labels, records, count, first_lane(spread_like(ws, settings[3]))
        )
    if head[at.SINGLE] and optimiser == optimisers.SGD and count <= head[at.TILE] and not adjusted:
        for k in range(count):
            gather(ws, head, features, records[k], k)
            ws[head[at.LABELS] + k] = labels[records[k]]
        train_single(ws, uw, iw, head, program[0], settings, options, count, keys, most)
        return
    order, words = iw[head[at.INTEGERS] :], uw[2 * head[at.TILE] :]
    few, ws[head[at.RATE]] = min(head[at.TILE], MAX_TERMS), -settings[0]
    plain = optimiser == optimisers.SGD and settings[1] == 0.0
    for k in range(count):
        order[k] = k
    if optimiser != optimisers.SGD:
        pooling.fill_zero(ws, head[at.MEANS], head[at.PARAMETERS])
        pooling.fill_zero(ws, head[at.SQUARES], head[at.PARAMETERS])
    for epoch in range(epochs):
        if count > size:
            order_records(keys[1], epoch, count, words, order, words[most:], order[most:])
        for begin in range(0, count, size):
            m, loaded = min(size, count - begin), step > 0 and count <= min(size, head[at.TILE])
            prepare(ws, program)
            differentiate(
                ws, iw, uw, fw, program, reals, head, features, labels, records, order[begin:], m, keys[0], step,
                loaded, plain and m <= few,
            )  # fmt: skip
            power1, power2 = power1 * optimisers.BETA1, power2 * optimisers.BETA2
            optimisers.advance(ws, head, optimiser, settings, power1, power2, plain and m <= few)
            step += 1


@entry
def run(what, ws, iw, uw, fw, program, reals, head, settings, options, start, places, features, labels, records,
        starts, counts, keys, rows, sums):  # fmt: skip
    """What :class:`~uldp.learners.kernels.program.Runner` calls; ``what`` says which of the four it is.

    ``start`` holds the parameters as the workspace has them, ``places`` where each belongs in the flat vector (-1 for
    a gap). User i has records[starts[i] : starts[i] + counts[i]] and the keys keys[i].
    """
    parameters = head[at.PARAMETERS]
    reset(ws, head, start)
    if what == at.TRAIN or what == at.GRADIENT:
        for i in range(starts.size):
            reset(ws, head, start)
            mine, count = records[starts[i] :], counts[i]
            if what == at.TRAIN:
                train(ws, iw, uw, fw, program, reals, head, settings, options, features, labels, mine, count, keys[i])
                for k in range(parameters):
                    if places[k] >= 0:
                        rows[i, places[k]] = ws[k] - start[k]
            else:
                order = iw[head[at.INTEGERS] :]
                for k in range(count):
                    order[k] = k
                prepare(ws, program)
                differentiate(ws, iw, uw, fw, program, reals, head, features, labels, mine, order, count, keys[i, 0], 0,
                              False, False)  # fmt: skip
                for k in range(parameters):
                    if places[k] >= 0:
                        rows[i, places[k]] = ws[head[at.GRADIENTS] + k]
        return
    prepare(ws, program)
    if what == at.CLIP:
        pooling.fill_zero(fw, 0, parameters)
    for begin in range(0, records.size, head[at.TILE]):
        count = min(head[at.TILE], records.size - begin)
        if what == at.CLIP:
            add_clipped(
                ws, iw, uw, fw, program, reals, head, features, labels, records, begin, count, keys, options[0],
                settings[0],
            )  # fmt: skip
        else:
            for r in range(count):
                gather(ws, head, features, records[begin + r], r)
            forward(ws, program, reals, head, count, False, uw, 0)
            for r in range(count):
                for j in range(head[at.N_OUTPUTS]):
                    rows[begin + r, j] = ws[head[at.OUTPUTS] + r * padded_length(head[at.N_OUTPUTS]) + j]
    if what == at.CLIP:
        for k in range(parameters):
            if places[k] >= 0:
                sums[places[k]] = fw[k]
