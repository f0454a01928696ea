/* perf produces or consumes a number of records with librdkafka at its defaults, and prints one line of JSON.
 *
 *   perf produce HOST:PORT TOPIC RECORDS SIZE ACKS
 *   perf consume HOST:PORT TOPIC RECORDS PARTITIONS
 *
 * It is linked with the library inside PyPI's confluent-kafka, which brings no header: the declarations below are
 * those functions of librdkafka's stable interface that are used here.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;

typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} rd_kafka_message_t;

enum { PRODUCER = 0, CONSUMER = 1, CONF_OK = 0, F_COPY = 2, QUEUE_FULL = -184, PARTITION_EOF = -191, OFFSET_BEGINNING = -2 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *name, const char *value, char *why, size_t why_size);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                 void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *, char *why, size_t why_size);
const char *rd_kafka_version_str(void);
const char *rd_kafka_err2str(int err);
int rd_kafka_last_error(void);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *name, void *conf);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t partition, int flags, void *payload, size_t len, const void *key,
                     size_t key_len, void *opaque);
int rd_kafka_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_flush(rd_kafka_t *, int timeout_ms);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t partition, int64_t offset, rd_kafka_queue_t *);
int rd_kafka_consume_stop(rd_kafka_topic_t *, int32_t partition);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
long rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);

#define BATCH 10000

static long delivered, failed;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "perf: %s: %s\n", what, why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    delivered++;
    if (message->err) {
        if (!failed++) fprintf(stderr, "perf: a record was refused: %s\n", rd_kafka_err2str(message->err));
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[512];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != CONF_OK) fail(name, why);
}

static rd_kafka_t *client_of(int type, rd_kafka_conf_t *conf, const char *brokers) {
    char why[512];
    set(conf, "bootstrap.servers", brokers);
    rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
    if (!client) fail("rd_kafka_new", why);
    return client;
}

static void print(const char *mode, long records, long bytes, double seconds) {
    printf("{\"mode\": \"%s\", \"records\": %ld, \"failed\": %ld, \"seconds\": %.4f, \"records_per_second\": %.1f, "
           "\"mb_per_second\": %.2f, \"librdkafka\": \"%s\"}\n",
           mode, records, failed, seconds, records / seconds, bytes / seconds / 1e6, rd_kafka_version_str());
}

/* Counts from the first record handed over to the last acknowledgement. */
static int produce(const char *brokers, const char *name, long records, size_t size, const char *acks) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "acks", acks);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *client = client_of(PRODUCER, conf, brokers);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    char *payload = malloc(size);
    for (size_t i = 0; i < size; i++) payload[i] = (char)('A' + rand() % 26);

    double begun = now();
    for (long i = 0; i < records; i++) {
        while (rd_kafka_produce(topic, -1, F_COPY, payload, size, NULL, 0, NULL) != 0) {
            int err = rd_kafka_last_error();
            if (err != QUEUE_FULL) fail("produce", rd_kafka_err2str(err));
            rd_kafka_poll(client, 100);
        }
        if (i % 1000 == 0) rd_kafka_poll(client, 0);
    }
    if (rd_kafka_flush(client, 300000) != 0 || delivered != records) fail("flush", "records are not acknowledged");
    print("produce", records, records * (long)size, now() - begun);
    return failed ? 1 : 0;
}

/* Counts from the first request for records to the last record handed over. */
static int consume(const char *brokers, const char *name, long records, int partitions) {
    rd_kafka_t *client = client_of(CONSUMER, rd_kafka_conf_new(), brokers);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    static rd_kafka_message_t *batch[BATCH];
    long seen = 0, bytes = 0;

    double begun = now(), last = begun;
    for (int p = 0; p < partitions; p++)
        if (rd_kafka_consume_start_queue(topic, p, OFFSET_BEGINNING, queue) != 0)
            fail("consume", rd_kafka_err2str(rd_kafka_last_error()));
    while (seen < records) {
        long got = rd_kafka_consume_batch_queue(queue, 100, batch, BATCH);
        for (long i = 0; i < got; i++) {
            if (batch[i]->err && batch[i]->err != PARTITION_EOF) fail("consume", rd_kafka_err2str(batch[i]->err));
            if (!batch[i]->err) seen++, bytes += (long)batch[i]->len;
            rd_kafka_message_destroy(batch[i]);
        }
        if (got > 0) last = now();
        if (now() - last > 30) fail("consume", "no record for 30 s");
    }
    print("consume", seen, bytes, now() - begun);
    return 0;
}

int main(int count, char **words) {
    int status = 2;
    if (count == 7 && !strcmp(words[1], "produce"))
        status = produce(words[2], words[3], atol(words[4]), (size_t)atol(words[5]), words[6]);
    else if (count == 6 && !strcmp(words[1], "consume"))
        status = consume(words[2], words[3], atol(words[4]), atoi(words[5]));
    else
        fprintf(stderr, "usage: perf produce BROKERS TOPIC RECORDS SIZE ACKS | consume BROKERS TOPIC RECORDS PARTITIONS\n");
    fflush(stdout);
    _Exit(status); /* closing the client waits for what nobody needs any more */
}
