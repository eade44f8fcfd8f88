"""The data sets that users make and that travel: files, arrays, tar shards, Hugging Face's tables, objects of a cloud.

Here are the classes alone. `ddlp.translate` turns them, and torchvision's, into plain data; `csd_engine.data` reads that.
"""
