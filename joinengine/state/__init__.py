"""The state that survives a batch: runs, spines, manifests, and the files that hold them."""
