"""Privacy of whole clients: the admission, the release of noised means, and their account."""
