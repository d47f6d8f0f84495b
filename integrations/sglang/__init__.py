"""SGLang: pages of HiCache's third level in the store."""
