"""What a Python caller uses: train, plan, and what the same people have spent in this process."""
