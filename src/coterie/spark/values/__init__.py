"""Values that were written with a schema, decoded to columns on the executors.

wire        Confluent's wire format: which schema each value was written with
registry    schemas by id and by subject, from a registry's server or a file, kept on disk
avro_types  what an Avro schema is in Arrow, which is what Spark's `from_avro` makes of it
avro        values of Avro in the reader's schema, and why some are none
columns     a batch with its values decoded, and what becomes of those that are not
options     the options of all this, resolved once on the driver
"""
