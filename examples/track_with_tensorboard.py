"""Track a run with TensorBoard: `pip install 'uldp[tracking]'`, then `python track_with_tensorboard.py logs`."""

import sys

import uldp

tracker = uldp.TensorBoardTracker(f"{sys.argv[1]}/uldp-avg-w")
result = uldp.train("breast-cancer", epsilon=5.0, rounds=5, callbacks=tracker, progress=False)
print(f"tensorboard --logdir {sys.argv[1]}: {result}")
