"""The columns of a program's table, and of its header. A row of the table is one operation on the workspace.

Activations of a batch are rows, one record after the other; images lie as (height, width, channels). All rows are
rounded up to eight numbers. Parameters and their gradients have zeros in the gaps; those of activations may hold
anything.
"""

from __future__ import annotations

from typing import Final

# --- kinds of operations --------------------------------------------------------------------------------------
LINEAR: Final = 0
ACTIVATION: Final = 1
ROW_NORM: Final = 2
IMAGE_NORM: Final = 3
DROPOUT: Final = 4
CONVOLUTION: Final = 5
MAX_POOL: Final = 6
MEAN_POOL: Final = 7
EMBEDDING: Final = 8
REORDER: Final = 9  # an image from (pixels, channels) to torch's (channels, pixels)
FORK: Final = 10  # where a shortcut begins, and where it ends
ADD: Final = 11

# --- columns that all operations have -------------------------------------------------------------------------
KIND: Final = 0
X: Final = 1  # input of the first record
NX: Final = 2  # numbers of a record's input
Y: Final = 3
NY: Final = 4
GX: Final = 5  # gradient of the input; -1 where nobody asks for it, equal to GY where it is made in place
GY: Final = 6
W: Final = 7  # weights (or a norm's scale); -1 where there are none
B: Final = 8  # bias (or a norm's shift)
ROW: Final = 9  # distance of two rows of the matrix that forward products read
TURNED: Final = 10  # room for the transposed weights
FUNCTION: Final = 11  # of an activation
ROW_X: Final = 43  # from one record's input to the next one's: NX rounded up to whole vectors
ROW_Y: Final = 44

# --- norms ----------------------------------------------------------------------------------------------------
GROUPS: Final = 12
HAT: Final = 13
RATES: Final = 14
ROOM: Final = 15  # two rows of channels to work in

# --- dropout --------------------------------------------------------------------------------------------------
LAYER: Final = 16
MASK: Final = 17
THRESHOLD: Final = 18
WHOLE_CHANNELS: Final = 19

# --- images ---------------------------------------------------------------------------------------------------
CHANNELS: Final = 20
PIXELS: Final = 21
HEIGHT: Final = 22
WIDTH: Final = 23
OUT_HEIGHT: Final = 24
OUT_WIDTH: Final = 25
KH: Final = 26
KW: Final = 27
SH: Final = 28
SW: Final = 29
PH: Final = 30
PW: Final = 31
OUT_CHANNELS: Final = 32
BORDERED: Final = 33  # the image with zeros around it: X where there are none
N_BORDERED: Final = 34
G_BORDERED: Final = 35  # room for the gradient of one image with its border
INDEX: Final = 36  # of a maximum: its number among the pixels of its window
POOLED: Final = 45  # of a convolution: 1 where max-pooling comes next, else 0

COUNT_BORDER: Final = 37  # whether a mean counts the zeros around the image

# --- shortcuts ------------------------------------------------------------------------------------------------
SKIP: Final = 38  # the kept input
KEPT: Final = 39  # the kept gradient

# --- embedding ------------------------------------------------------------------------------------------------
CATEGORIES: Final = 40
DIMENSION: Final = 41
EMBEDDED: Final = 42  # so many columns come first that hold categories

COLUMNS: Final = 46

# --- header ---------------------------------------------------------------------------------------------------
TILE: Final = 0  # records that go through the layers together
PARAMETERS: Final = 1  # numbers of the parameter block, from 0 of the workspace on
GRADIENTS: Final = 2
MEANS: Final = 3  # states of the optimiser: Adam's, or the velocity of momentum
SQUARES: Final = 4
ZERO: Final = 5  # zeros, as many as the longest row has
ZEROS: Final = 6
ONE: Final = 7
FEATURES: Final = 8  # input of the first operation
N_FEATURES: Final = 9
FEATURE_CHANNELS: Final = 10
OUTPUTS: Final = 11
N_OUTPUTS: Final = 12
G_OUTPUTS: Final = 13
LABELS: Final = 14
FIRST_TRAINED: Final = 15  # the first operation with parameters
LOSS: Final = 16
EXPLICIT: Final = (
    17  # so many parameters come first whose gradients are formed for each record when records are clipped
)
RECORD_GRADIENTS: Final = 18
VALUES: Final = 19  # room for lists of numbers (convolution)
WORKSPACE: Final = 20
INTEGERS: Final = 21
CLIPPED_B: Final = 22  # float64 room of clipped sums: the sums, factors, inputs and, from here on, scaled gradients
CLIPPED: Final = 23  # numbers of it
SINGLE: Final = 24  # whether all is one linear layer with one output, and a loss that adds over records
RATE: Final = 25  # minus the learning rate, where a step takes the place of a gradient
OFFSETS: Final = 26  # what the loss adds to each output: zeros, or logarithms of the user's own label frequencies

HEADER: Final = 27

# --- what to do -----------------------------------------------------------------------------------------------
TRAIN: Final = 0
GRADIENT: Final = 1
CLIP: Final = 2
PREDICT: Final = 3
