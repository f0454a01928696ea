"""Values that were written with a schema, decoded to columns on the executors.

wire        Confluent's wire format: which schema each value was written with
registry    schemas by id and by subject, from a registry's server or a file, kept on disk
unknown_ids ids that a registry does not have, and how often it is asked
avro_types  what an Avro schema is in Arrow, which is what Spark's `from_avro` makes of it
avro        values of Avro in the reader's schema, and why some are none
resolution  Avro's rules on whole columns, where they are simple
protobuf    the same for Protocol Buffers
json_schema the same for JSON
halving     which of many values are none, where only all together say that some are
columns     a batch with its values decoded, and what becomes of those that are not
value_format  the options of all this, resolved once on the driver
"""
