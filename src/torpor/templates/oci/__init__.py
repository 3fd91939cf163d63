"""Container images, read without a container engine: OCI layouts and what `docker save` writes.

`image.look` says what an image is, `flatten.flatten` turns its layers into one tar, `registry` asks skopeo.
Nothing of an image is trusted: digests are compared, sizes and counts are bounded, names stay in the tree.
"""
