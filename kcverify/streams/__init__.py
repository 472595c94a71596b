"""Two streams against each other: identity first, then drift, with what each number can and cannot say."""
