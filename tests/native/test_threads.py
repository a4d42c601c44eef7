"""Work in threads: in order, bounded, errors in their turn."""

import threading

import pytest

from uldp.native.threads import in_threads


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_results_come_in_the_order_of_the_items(threads):
    assert list(in_threads(lambda item: item * item, range(100), threads)) == [item * item for item in range(100)]
    assert list(in_threads(str, [], threads)) == []


def test_several_threads_work_and_the_caller_is_one_of_them():
    both, seen = threading.Barrier(2, timeout=30), set()

    def work(item):
        seen.add(threading.get_ident())
        both.wait()  # passes only if two threads are in here at once
        return item

    assert list(in_threads(work, range(10), 2)) == list(range(10))
    assert len(seen) == 2 and threading.get_ident() in seen


def test_what_is_not_fetched_is_not_computed():
    done = []
    results = in_threads(lambda item: done.append(item) or item, range(1000), 2)
    assert next(results) == 0
    results.close()
    assert len(done) <= 5


def test_an_error_is_raised_in_its_turn():
    def work(item):
        if item == 3:
            raise ValueError("three")
        return item

    results, found = in_threads(work, range(10), 2), []
    with pytest.raises(ValueError, match="three"):
        found.extend(result for result in results)
    assert found == [0, 1, 2]
