"""Track a run with MLflow: `pip install 'uldp[tracking]'`, then `python track_with_mlflow.py http://localhost:5000`."""

import sys

import uldp

tracker = uldp.MlflowTracker("breast-cancer", name="uldp-avg-w", uri=sys.argv[1])
result = uldp.train("breast-cancer", epsilon=5.0, rounds=5, callbacks=tracker, progress=False)
print(f"MLflow run {tracker.run}: {result}")
