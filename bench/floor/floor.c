/* The floor of a benchmark's row: a server of STOMP and OpenWire that does what no broker can leave out, and no more.
 *
 *     floor PORT DIRECTORY [gateway | copies COUNT NEEDED]
 *     floor rows WAY ROWS BYTES DIRECTORY    (see below)
 *
 * It reads what clients send, finds the ends of the frames, copies each persistent SEND and each ACK of one into a
 * batch with a CRC-32, writes the batch to a file of reserved space, syncs it (all that came during a sync shares the
 * next one), and then writes receipts and messages: one write for a connection and a turn. Small batches are synced in
 * the loop, as the broker does, larger ones in a thread. There are no limits, users, selectors, transactions, expiry,
 * redelivery or recovery: the file is never read. So its rate and its processor time are bounds for any broker that
 * keeps the same promise to the same clients, in any language. OpenWire is spoken in the encoding that our broker
 * agrees on (version 12, loose, no cache), so frames have the same sizes; a transaction is one of a connection.
 *
 * With `gateway` clients meet one process, and all of the above is done by another one behind it. The first passes on
 * what it reads, for all clients by one connection; pieces have a head: the number of the client, and the length.
 *
 * With `copies` COUNT processes have a file each: this one passes each batch on, the others write, sync and answer, and
 * nothing is confirmed before NEEDED files, the one here among them, have it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 256 << 10, INLINE_BYTES = 4 << 10, SEGMENT_BYTES = 64 << 20, BUCKETS = 4096, EVENTS = 256 };
enum { SMALL_BYTES = 64 << 10, ZEROS_BYTES = 128 << 10 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *grown(void *block, size_t bytes) {
    block = realloc(block, bytes);
    if (!block) fail("realloc");
    return block;
}

/* A growing run of bytes. */
typedef struct {
    char *data;
    size_t length, room;
} Bytes;

static char *extend(Bytes *bytes, size_t more) {
    if (bytes->length + more > bytes->room) {
        bytes->room = (bytes->length + more) * 2;
        bytes->data = grown(bytes->data, bytes->room);
    }
    char *at = bytes->data + bytes->length;
    bytes->length += more;
    return at;
}

static void append(Bytes *bytes, const void *data, size_t length) { memcpy(extend(bytes, length), data, length); }

#define APPEND(bytes, literal) append(bytes, literal, sizeof(literal) - 1)

static void append_number(Bytes *bytes, uint64_t number) {
    char digits[20];
    int at = sizeof digits;
    do digits[--at] = '0' + number % 10;
    while (number /= 10);
    append(bytes, digits + at, sizeof digits - at);
}

/* The CRC-32 of zlib, eight bytes a step. */
static uint32_t crc_of[8][256];

static void make_crc(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc_of[0][byte] = crc;
    }
    for (int step = 1; step < 8; step++)
        for (int byte = 0; byte < 256; byte++)
            crc_of[step][byte] = crc_of[step - 1][byte] >> 8 ^ crc_of[0][crc_of[step - 1][byte] & 255];
}

static uint32_t crc32_of(const unsigned char *data, size_t length) {
    uint32_t crc = ~0u;
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = crc_of[7][low & 255] ^ crc_of[6][low >> 8 & 255] ^ crc_of[5][low >> 16 & 255] ^ crc_of[4][low >> 24]
            ^ crc_of[3][high & 255] ^ crc_of[2][high >> 8 & 255] ^ crc_of[1][high >> 16 & 255] ^ crc_of[0][high >> 24];
    }
    while (length--) crc = crc >> 8 ^ crc_of[0][(crc ^ *data++) & 255];
    return ~crc;
}

typedef struct Connection Connection;
typedef struct Queue Queue;
typedef struct Subscription Subscription;

typedef struct Message {
    struct Message *next;
    size_t length; /* of the body */
    uint32_t number, holders;
    int persistent;
    char body[];
} Message;

struct Subscription {
    Connection *connection;
    Queue *queue;
    Subscription *next; /* of the queue, in a circle */
    char id[64];
    Bytes head; /* of OpenWire: what comes before the message in each dispatch, without the size */
    int cumulative, automatic;
    int64_t credit;
    uint32_t *held; /* numbers of messages in the order of delivery, for cumulative acknowledgements */
    size_t held_from, held_to, held_room;
};

struct Queue {
    Queue *next;
    char name[256];
    int is_topic, is_due;
    Message *first, **last;
    Subscription *subscriptions; /* the one that is next in turn */
    Queue *due;
};

/* A send or, without a message, so many acknowledgements. */
typedef struct {
    Queue *queue;
    Message *message;
    uint32_t acknowledged;
} Change;

struct Connection {
    int fd, is_dirty, waits_to_write, is_closed, has_read, speaks_openwire;
    uint32_t number; /* of the gateway */
    Bytes in, out;
    Bytes producer;             /* the identifier of a producer of OpenWire with a window */
    Change *changes;            /* of an open transaction */
    size_t changed, changes_room;
    Connection *dirty;
    Subscription *subscription; /* one for each connection */
    Queue *queue;               /* the last that was named */
};

/* What a batch that is durable has an effect on, in the order of its coming. */
typedef struct {
    Connection *connection;
    Queue *queue;     /* of a message that may be delivered now */
    Message *message; /* that, or one that is gone with its acknowledgement */
    char receipt[64];
    int answers;      /* a command of OpenWire, */
    uint32_t command; /* this one */
    uint32_t freed;   /* bytes of a producer's window */
} Effect;

typedef struct {
    Bytes records;
    Effect *effects;
    size_t count, room;
} Batch;

static int poll_fd, wake_fd, file_fd = -1, is_gateway;
static Connection *between, **numbered; /* the connection of the gateway and the store */
static uint32_t numbered_count, numbered_room;
static const char *directory;
static off_t file_end, zeroed; /* up to where blocks are written: a sync of small records has no block to note */
static int file_number;
static Queue *queues[BUCKETS], *due;
static Connection *dirty;
static Message **messages; /* by number */
static uint32_t *unused, unused_count, messages_room;
static Batch batches[2], *filling = &batches[0], *syncing;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t handed_over = PTHREAD_COND_INITIALIZER;

/* A connection by loopback. */
static void connect_both(int ends[2]) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1)) fail("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size)) fail("getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(ends[0], (struct sockaddr *)&address, size)) fail("connect");
    if ((ends[1] = accept(listener, NULL, NULL)) < 0) fail("accept");
    for (int end = 0; end < 2; end++) setsockopt(ends[end], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    close(listener);
}

/* Other copies of the file. */

enum { COPIES_MAX = 8, UNASKED_MS = 2 };

static struct pollfd copies[COPIES_MAX]; /* connections to them */
static uint64_t kept[COPIES_MAX];        /* how many batches each has */
static uint64_t batches_begun;
static int copies_count, copies_needed = 1, copy_number, is_late; /* is_late: nothing came for UNASKED_MS */

static int move_all(int fd, void *data, size_t length, int reads) {
    for (char *at = data; length;) {
        ssize_t moved = reads ? read(fd, at, length) : write(fd, at, length);
        if (moved <= 0) return 0;
        at += moved;
        length -= moved;
    }
    return 1;
}

static void pass_to_copies(Bytes *records) {
    uint32_t length = records->length;
    struct iovec pieces[2] = {{&length, sizeof length}, {records->data, length}};
    batches_begun++;
    for (int i = 0; i < copies_count; i++) {
        ssize_t wrote = writev(copies[i].fd, pieces, 2) - (ssize_t)sizeof length;
        if (wrote < 0 || !move_all(copies[i].fd, records->data + wrote, length - wrote, 0)) fail("a copy");
    }
}

static void await_copies(void) {
    for (;;) {
        int have = 1;
        for (int i = 0; i < copies_count; i++) have += kept[i] == batches_begun;
        if (have >= copies_needed) return;
        if (poll(copies, copies_count, -1) < 0 && errno != EINTR) fail("poll");
        for (int i = 0; i < copies_count; i++)
            if (copies[i].revents && !move_all(copies[i].fd, &kept[i], sizeof kept[i], 1)) fail("a copy");
    }
}

/* The file. */

static void write_durable(Bytes *records) {
    size_t length = records->length;
    if (file_fd < 0 || file_end + (off_t)length > SEGMENT_BYTES) {
        char name[4096];
        if (file_fd >= 0) {
            snprintf(name, sizeof name, "%s/floor.%d.%d", directory, copy_number, file_number);
            unlink(name);
            close(file_fd);
        }
        snprintf(name, sizeof name, "%s/floor.%d.%d", directory, copy_number, ++file_number);
        file_fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (file_fd < 0) fail(name);
        off_t room = length > SEGMENT_BYTES ? (off_t)length : SEGMENT_BYTES;
        if (posix_fallocate(file_fd, 0, room)) fail("posix_fallocate");
        if (fsync(file_fd)) fail("fsync");
        file_end = zeroed = 0;
    }
    if (length <= SMALL_BYTES && file_end + (off_t)length > zeroed) {
        static const char zeros[ZEROS_BYTES];
        zeroed = file_end + ZEROS_BYTES;
        if (pwrite(file_fd, zeros, ZEROS_BYTES, file_end) != ZEROS_BYTES) fail("pwrite");
    }
    for (size_t at = 0; at < length;) {
        ssize_t wrote = pwrite(file_fd, records->data + at, length - at, file_end);
        if (wrote < 0) fail("pwrite");
        at += wrote;
        file_end += wrote;
    }
    pass_to_copies(records);
    if (fdatasync(file_fd)) fail("fdatasync");
    await_copies();
    records->length = 0;
}

/* The process of another copy, until this one ends. */
static void keep_copy(int fd) {
    Bytes records = {0};
    for (uint64_t done = 1;; done++) {
        uint32_t length;
        if (!move_all(fd, &length, sizeof length, 1) || !move_all(fd, extend(&records, length), length, 1)) exit(0);
        write_durable(&records);
        if (!move_all(fd, &done, sizeof done, 0)) exit(0);
    }
}

static void make_copies(int count, int needed) {
    if (count > COPIES_MAX || needed > count) fail("so many copies");
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < count - 1; i++) {
        int ends[2];
        connect_both(ends);
        pid_t child = fork();
        if (child < 0) fail("fork");
        close(ends[child > 0]);
        if (!child) {
            for (int before = 0; before < i; before++) close(copies[before].fd);
            copy_number = i + 1;
            keep_copy(ends[1]);
        }
        copies[i] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    }
    copies_count = count - 1;
    copies_needed = needed;
}

static void *sync_batches(void *unused_argument) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!syncing) pthread_cond_wait(&handed_over, &mutex);
        pthread_mutex_unlock(&mutex);
        write_durable(&syncing->records);
        pthread_mutex_lock(&mutex);
        syncing = NULL;
        pthread_mutex_unlock(&mutex);
        if (eventfd_write(wake_fd, 1)) fail("eventfd_write");
    }
    return unused_argument;
}

static void record(const void *data, size_t length) {
    char *at = extend(&filling->records, 8 + length);
    memcpy(at + 8, data, length);
    uint32_t head[2] = {(uint32_t)length, crc32_of((unsigned char *)at + 8, length)};
    memcpy(at, head, 8);
}

static Effect *effect(Connection *connection) {
    if (filling->count == filling->room) {
        filling->room = filling->room ? filling->room * 2 : 1024;
        filling->effects = grown(filling->effects, filling->room * sizeof(Effect));
    }
    Effect *made = &filling->effects[filling->count++];
    *made = (Effect){.connection = connection};
    return made;
}

/* Connections and queues. */

static void will_write(Connection *connection) {
    if (connection->is_dirty) return;
    connection->is_dirty = 1;
    connection->dirty = dirty;
    dirty = connection;
}

static void pass_on(Connection *connection, const void *data, size_t length) {
    uint32_t head[2] = {connection->number, (uint32_t)length};
    append(&between->out, head, sizeof head);
    append(&between->out, data, length);
}

static void flush(Connection *connection) {
    connection->is_dirty = 0;
    if (connection->fd < 0) { /* it is one of the gateway */
        if (!connection->is_closed && connection->out.length)
            pass_on(connection, connection->out.data, connection->out.length);
        connection->out.length = 0;
        return;
    }
    size_t at = 0;
    while (at < connection->out.length && !connection->is_closed) {
        ssize_t wrote = write(connection->fd, connection->out.data + at, connection->out.length - at);
        if (wrote < 0 && errno == EAGAIN) break;
        if (wrote < 0) {
            at = connection->out.length;
            break;
        }
        at += wrote;
    }
    if (connection->is_closed) at = connection->out.length;
    memmove(connection->out.data, connection->out.data + at, connection->out.length -= at);
    int waits = connection->out.length > 0;
    if (waits != connection->waits_to_write) {
        connection->waits_to_write = waits;
        struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = connection};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    }
}

static void receipt(Connection *connection, const char *id) {
    APPEND(&connection->out, "RECEIPT\nreceipt-id:");
    append(&connection->out, id, strlen(id));
    APPEND(&connection->out, "\n\n\0");
    will_write(connection);
}

static Queue *queue_of(Connection *connection, const char *name, size_t length) {
    Queue *queue = connection->queue;
    if (queue && strlen(queue->name) == length && !memcmp(queue->name, name, length)) return queue;
    uint32_t bucket = crc32_of((const unsigned char *)name, length) % BUCKETS;
    for (queue = queues[bucket]; queue; queue = queue->next)
        if (strlen(queue->name) == length && !memcmp(queue->name, name, length)) break;
    if (!queue) {
        queue = calloc(1, sizeof *queue);
        if (!queue || length >= sizeof queue->name) fail("a queue's name");
        memcpy(queue->name, name, length);
        queue->is_topic = !strncmp(queue->name, "/topic/", 7);
        queue->last = &queue->first;
        queue->next = queues[bucket];
        queues[bucket] = queue;
    }
    return connection->queue = queue;
}

static Message *make_message(const char *body, size_t length, int persistent) {
    Message *message = grown(NULL, sizeof *message + length);
    if (!unused_count) {
        uint32_t room = messages_room ? messages_room * 2 : 4096;
        messages = grown(messages, room * sizeof *messages);
        unused = grown(unused, room * sizeof *unused);
        while (unused_count < room - messages_room) unused[unused_count] = messages_room + unused_count, unused_count++;
        messages_room = room;
    }
    *message = (Message){.length = length, .number = unused[--unused_count], .holders = 1, .persistent = persistent};
    memcpy(message->body, body, length);
    messages[message->number] = message;
    return message;
}

static void forget(Message *message) {
    if (--message->holders) return;
    messages[message->number] = NULL;
    unused[unused_count++] = message->number;
    free(message);
}

static void is_due(Queue *queue) {
    if (queue->is_due) return;
    queue->is_due = 1;
    queue->due = due;
    due = queue;
}

static void enqueue(Queue *queue, Message *message) {
    message->next = NULL;
    *queue->last = message;
    queue->last = &message->next;
    is_due(queue);
}

static void append_big(Bytes *bytes, uint32_t number) {
    number = htonl(number);
    append(bytes, &number, 4);
}

/* OpenWire: a message as it came, in a dispatch. */
static void dispatch_one(Subscription *subscription, Message *message) {
    Bytes *out = &subscription->connection->out;
    append_big(out, subscription->head.length + message->length + 4);
    append(out, subscription->head.data, subscription->head.length);
    append(out, message->body, message->length);
    append_big(out, 0); /* redeliveries */
}

static void deliver_frame(Subscription *subscription, Message *message) {
    Bytes *out = &subscription->connection->out;
    APPEND(out, "MESSAGE\nsubscription:");
    append(out, subscription->id, strlen(subscription->id));
    APPEND(out, "\nmessage-id:");
    append_number(out, message->number);
    APPEND(out, "\ndestination:");
    append(out, subscription->queue->name, strlen(subscription->queue->name));
    if (!subscription->automatic) {
        APPEND(out, "\nack:");
        append_number(out, message->number);
    }
    APPEND(out, "\ncontent-length:");
    append_number(out, message->length);
    APPEND(out, "\n\n");
    append(out, message->body, message->length);
    *extend(out, 1) = 0;
}

static void deliver(Subscription *subscription, Message *message) {
    (subscription->head.length ? dispatch_one : deliver_frame)(subscription, message);
    will_write(subscription->connection);
    if (subscription->automatic) {
        if (message->persistent) record(&message->number, sizeof message->number);
        return;
    }
    subscription->credit--;
    if (!subscription->cumulative) return;
    if (subscription->held_to == subscription->held_room) {
        size_t count = subscription->held_to - subscription->held_from;
        if (subscription->held) memmove(subscription->held, subscription->held + subscription->held_from, count * 4);
        subscription->held_from = 0;
        subscription->held_to = count;
        if (count * 2 >= subscription->held_room) {
            subscription->held_room = subscription->held_room ? subscription->held_room * 2 : 1024;
            subscription->held = grown(subscription->held, subscription->held_room * 4);
        }
    }
    subscription->held[subscription->held_to++] = message->number;
}

static void dispatch(Queue *queue) {
    queue->is_due = 0;
    while (queue->first && queue->subscriptions) {
        Message *message = queue->first;
        Subscription *start = queue->subscriptions, *taker = start;
        if (queue->is_topic) {
            do {
                deliver(taker, message);
                taker = taker->next;
            } while (taker != start);
        } else {
            while (taker->credit <= 0 && !taker->automatic)
                if ((taker = taker->next) == start) return;
            deliver(taker, message);
            queue->subscriptions = taker->next;
        }
        queue->first = message->next;
        if (!queue->first) queue->last = &queue->first;
        if (queue->is_topic || taker->automatic) forget(message);
    }
    if (queue->is_topic && !queue->subscriptions)
        while (queue->first) {
            Message *message = queue->first;
            queue->first = message->next;
            if (!queue->first) queue->last = &queue->first;
            forget(message);
        }
}

static void leave(Connection *connection) {
    Subscription *subscription = connection->subscription;
    if (!subscription) return;
    Subscription *before = subscription;
    while (before->next != subscription) before = before->next;
    before->next = subscription->next;
    subscription->queue->subscriptions = before == subscription ? NULL : before;
    free(subscription->held);
    free(subscription->head.data);
    free(subscription);
    connection->subscription = NULL;
}

static void join(Subscription *subscription, Queue *queue) {
    subscription->queue = queue;
    if (queue->subscriptions) {
        subscription->next = queue->subscriptions->next;
        queue->subscriptions->next = subscription;
    } else {
        queue->subscriptions = subscription->next = subscription;
    }
    subscription->connection->subscription = subscription;
    is_due(queue);
}

/* Frames. */

typedef struct {
    const char *at;
    size_t length;
} Text;

typedef struct {
    Text destination, receipt, id, ack, prefetch, length, persistent;
} Headers;

#define IS(text, literal) ((text).length == sizeof(literal) - 1 && !memcmp((text).at, literal, sizeof(literal) - 1))

static void copy_text(char *to, size_t room, Text text) {
    if (text.length >= room) fail("a header that is too long");
    memcpy(to, text.at, text.length);
    to[text.length] = 0;
}

static Headers headers_of(const char *at, const char *end) {
    Headers headers = {0};
    while (at < end) {
        const char *line_end = memchr(at, '\n', end - at);
        const char *colon = memchr(at, ':', line_end - at);
        if (colon) {
            Text name = {at, colon - at}, value = {colon + 1, line_end - colon - 1};
            if (IS(name, "destination")) headers.destination = value;
            else if (IS(name, "receipt")) headers.receipt = value;
            else if (IS(name, "id")) headers.id = value;
            else if (IS(name, "ack")) headers.ack = value;
            else if (IS(name, "prefetch-count")) headers.prefetch = value;
            else if (IS(name, "content-length")) headers.length = value;
            else if (IS(name, "persistent")) headers.persistent = value;
        }
        at = line_end + 1;
    }
    return headers;
}

static uint64_t number_of(Text text) {
    uint64_t number = 0;
    while (text.length--) number = number * 10 + *text.at++ - '0';
    return number;
}

static void on_send(Connection *connection, Headers *headers, const char *frame, const char *body, size_t length) {
    Queue *queue = queue_of(connection, headers->destination.at, headers->destination.length);
    int persistent = IS(headers->persistent, "true") && !queue->is_topic;
    Message *message = make_message(body, length, persistent);
    if (persistent) {
        record(frame, body - frame + length);
        Effect *later = effect(connection);
        later->queue = queue;
        later->message = message;
        if (headers->receipt.length) copy_text(later->receipt, sizeof later->receipt, headers->receipt);
        return;
    }
    enqueue(queue, message);
    if (headers->receipt.length) {
        char id[64];
        copy_text(id, sizeof id, headers->receipt);
        receipt(connection, id);
    }
}

static void settle(Connection *connection, uint32_t number) {
    Message *message = number < messages_room ? messages[number] : NULL;
    if (!message) fail("an acknowledgement of nothing");
    connection->subscription->credit++;
    if (message->persistent) {
        record(&number, sizeof number);
        effect(connection)->message = message;
    } else {
        forget(message);
    }
}

static void on_ack(Connection *connection, Headers *headers) {
    Subscription *subscription = connection->subscription;
    uint32_t number = number_of(headers->id);
    if (subscription->cumulative) {
        uint32_t one;
        do settle(connection, one = subscription->held[subscription->held_from++]);
        while (one != number);
    } else {
        settle(connection, number);
    }
    is_due(subscription->queue);
    if (headers->receipt.length) copy_text(effect(connection)->receipt, 64, headers->receipt);
}

static void on_subscribe(Connection *connection, Headers *headers) {
    leave(connection);
    Subscription *subscription = calloc(1, sizeof *subscription);
    if (!subscription) fail("calloc");
    Queue *queue = queue_of(connection, headers->destination.at, headers->destination.length);
    subscription->connection = connection;
    copy_text(subscription->id, sizeof subscription->id, headers->id);
    subscription->automatic = !headers->ack.length || IS(headers->ack, "auto");
    subscription->cumulative = IS(headers->ack, "client");
    subscription->credit = headers->prefetch.length ? (int64_t)number_of(headers->prefetch) : 1000;
    join(subscription, queue);
    if (headers->receipt.length) copy_text(effect(connection)->receipt, 64, headers->receipt);
}

/* The frame at `at`; returns its end, or NULL if a part of it is missing. */
static const char *on_frame(Connection *connection, const char *at, const char *end) {
    const char *head_end = memmem(at, end - at, "\n\n", 2);
    if (!head_end) return NULL;
    const char *names = (const char *)memchr(at, '\n', head_end + 1 - at) + 1;
    Text command = {at, names - at - 1};
    Headers headers = headers_of(names, head_end + 1);
    const char *body = head_end + 2;
    const char *body_end = headers.length.length ? body + number_of(headers.length) : memchr(body, 0, end - body);
    if (!body_end || body_end >= end) return NULL;
    if (IS(command, "SEND")) {
        on_send(connection, &headers, at, body, body_end - body);
    } else if (IS(command, "ACK")) {
        on_ack(connection, &headers);
    } else if (IS(command, "SUBSCRIBE")) {
        on_subscribe(connection, &headers);
    } else if (IS(command, "CONNECT")) {
        APPEND(&connection->out, "CONNECTED\nversion:1.2\nheart-beat:0,0\nserver:floor\n\n\0");
        will_write(connection);
    } else if (headers.receipt.length) { /* DISCONNECT */
        copy_text(effect(connection)->receipt, 64, headers.receipt);
    }
    return body_end + 1;
}

/* Commands of OpenWire, in the order of their fields; numbers have the other byte order. */

enum { HELLO = 1, CONSUMER = 5, PRODUCER = 6, TRANSACTION = 7, REMOVE = 12, PRODUCER_ACK = 19, DISPATCH = 21 };
enum { ACK = 22, FIRST_MESSAGE = 23, LAST_MESSAGE = 29, ANSWER = 30, QUEUE = 100, CONNECTION_ID = 120, SESSION_ID };
enum { HEAD_BYTES = 6, COMMITS = 2, ROLLS_BACK = 4, STANDARD_ACK = 2, CLIENT_OVERHEAD_BYTES = 1024 };

static uint32_t big(const char *at) {
    uint32_t number;
    memcpy(&number, at, 4);
    return ntohl(number);
}

static const char *after_text(const char *at) {
    return *at ? at + 3 + ((uint8_t)at[1] << 8 | (uint8_t)at[2]) : at + 1;
}

/* After an identifier, a destination or nothing. */
static const char *after_nested(const char *at) {
    if (!*at) return at + 1;
    int type = (uint8_t)at[1];
    at += 2;
    if (type >= QUEUE && type < QUEUE + 4) return after_text(at);
    switch (type) {
    case 110: return after_nested(after_text(at)) + 16;  /* of a message */
    case 111: return after_nested(at + 8);               /* of a transaction */
    case CONNECTION_ID: return after_text(at);
    case SESSION_ID: return after_text(at) + 8;
    case 122: case 123: return after_text(at) + 16;      /* of a consumer or producer */
    }
    fprintf(stderr, "structures of type %d are unknown\n", type);
    exit(1);
}

static Queue *queue_at(Connection *connection, const char *at) {
    return queue_of(connection, at + 5, (uint8_t)at[3] << 8 | (uint8_t)at[4]);
}

static void answer(Connection *connection, uint32_t command) {
    Bytes *out = &connection->out;
    append_big(out, HEAD_BYTES + 4);
    APPEND(out, "\x1e\0\0\0\0\0");
    append_big(out, command);
    will_write(connection);
}

static void will_answer(Connection *connection, const char *frame) {
    if (!frame[5]) return;
    Effect *later = effect(connection);
    later->answers = 1;
    later->command = big(frame + 1);
}

static void free_window(Connection *connection, uint32_t freed) {
    Bytes *out = &connection->out;
    append_big(out, HEAD_BYTES + connection->producer.length + 4);
    APPEND(out, "\x13\0\0\0\0\0");
    append(out, connection->producer.data, connection->producer.length);
    append_big(out, freed);
    will_write(connection);
}

static Change *change(Connection *connection) {
    if (connection->changed == connection->changes_room) {
        connection->changes_room = connection->changes_room ? connection->changes_room * 2 : 128;
        connection->changes = grown(connection->changes, connection->changes_room * sizeof(Change));
    }
    Change *made = &connection->changes[connection->changed++];
    *made = (Change){0};
    return made;
}

static void store(Connection *connection, Queue *queue, Message *message) {
    if (message->persistent) record(message->body, message->length);
    Effect *later = effect(connection);
    later->queue = queue;
    later->message = message;
}

static void on_message(Connection *connection, const char *frame, size_t length) {
    const char *destination = after_nested(frame + HEAD_BYTES), *transaction = after_nested(destination);
    Queue *queue = queue_at(connection, destination);
    const char *at = after_nested(transaction);   /* the original destination */
    at = after_nested(after_nested(after_nested(at))); /* its message, original transaction */
    at = after_text(after_text(at) + 4);          /* group, correlation */
    int persistent = at[0];
    at = after_text(after_nested(at + 1 + 8 + 1) + 8); /* expiry, priority, reply-to, time, type */
    uint32_t freed = connection->producer.length ? CLIENT_OVERHEAD_BYTES + (*at ? big(at + 1) : 0) : 0;
    Message *message = make_message(frame, length, persistent);
    if (*transaction) {
        Change *made = change(connection);
        made->queue = queue;
        made->message = message;
        return;
    }
    if (!persistent) {
        enqueue(queue, message);
        if (frame[5]) answer(connection, big(frame + 1));
        if (freed) free_window(connection, freed);
        return;
    }
    store(connection, queue, message);
    Effect *later = &filling->effects[filling->count - 1];
    later->freed = freed;
    if (!frame[5]) return;
    later->answers = 1;
    later->command = big(frame + 1);
}

static void acknowledge(Connection *connection, uint32_t count) {
    Subscription *subscription = connection->subscription;
    while (count--) settle(connection, subscription->held[subscription->held_from++]);
    is_due(subscription->queue);
}

static void on_message_ack(Connection *connection, const char *frame) {
    const char *transaction = after_nested(frame + HEAD_BYTES), *kind = after_nested(after_nested(transaction));
    uint32_t count = big(after_nested(after_nested(kind + 1)));
    if (*kind != STANDARD_ACK) return; /* the client has only read it */
    if (*transaction) change(connection)->acknowledged = count;
    else acknowledge(connection, count);
    will_answer(connection, frame);
}

static void on_transaction(Connection *connection, const char *frame) {
    int kind = *after_nested(after_nested(frame + HEAD_BYTES));
    if (kind == ROLLS_BACK) fail("a transaction that is rolled back");
    if (kind == COMMITS) {
        for (Change *made = connection->changes; made < connection->changes + connection->changed; made++) {
            if (made->message) store(connection, made->queue, made->message);
            else acknowledge(connection, made->acknowledged);
        }
        connection->changed = 0;
    }
    will_answer(connection, frame);
}

static void on_consumer(Connection *connection, const char *frame) {
    const char *id = frame + HEAD_BYTES, *end = after_nested(id), *destination = end + 1;
    will_answer(connection, frame);
    if ((uint8_t)destination[1] != QUEUE) return; /* advisories */
    leave(connection);
    Subscription *subscription = calloc(1, sizeof *subscription);
    if (!subscription) fail("calloc");
    const char *destination_end = after_nested(destination);
    subscription->connection = connection;
    subscription->cumulative = 1;
    subscription->credit = big(destination_end);
    APPEND(&subscription->head, "\x15\0\0\0\0\0");
    append(&subscription->head, id, end - id);
    append(&subscription->head, destination, destination_end - destination);
    APPEND(&subscription->head, "\1"); /* there is a message */
    join(subscription, queue_at(connection, destination));
}

static void on_producer(Connection *connection, const char *frame) {
    const char *id = frame + HEAD_BYTES, *end = after_nested(id);
    will_answer(connection, frame);
    if (big(after_nested(end) + 2)) append(&connection->producer, id, end - id);
}

static void on_hello(Connection *connection) {
    static const char said[] = "\1ActiveMQ\0\0\0\x0c\1\0\0\0\x88\0\0\0\6"
        "\0\x14TightEncodingEnabled\1\0" "\0\x0c" "CacheEnabled\1\0" "\0\x11TcpNoDelayEnabled\1\1"
        "\0\x09" "CacheSize\5\0\0\0\0" "\0\x15MaxInactivityDuration\6\0\0\0\0\0\0\0\0"
        "\0\x0cMaxFrameSize\6\0\0\0\0\x10\0\0\0";
    append_big(&connection->out, sizeof said - 1);
    append(&connection->out, said, sizeof said - 1);
    will_write(connection);
}

/* The command of OpenWire at `at`; returns its end, or NULL if a part of it is missing. */
static const char *on_command(Connection *connection, const char *at, const char *end) {
    if (end - at < 4) return NULL;
    uint32_t length = big(at);
    const char *frame = at + 4;
    if (end - frame < length) return NULL;
    switch (*frame) {
    case HELLO: on_hello(connection); break;
    case CONSUMER: on_consumer(connection, frame); break;
    case PRODUCER: on_producer(connection, frame); break;
    case TRANSACTION: on_transaction(connection, frame); break;
    case ACK: on_message_ack(connection, frame); break;
    case REMOVE:
        if (frame[HEAD_BYTES + 1] == CONNECTION_ID || frame[HEAD_BYTES + 1] == SESSION_ID) leave(connection);
        will_answer(connection, frame);
        break;
    default:
        if (*frame >= FIRST_MESSAGE && *frame <= LAST_MESSAGE) on_message(connection, frame, length);
        else if (*frame != ANSWER) will_answer(connection, frame);
    }
    return frame + length;
}

static void take_in(Connection *connection) {
    const char *at = connection->in.data, *end = at + connection->in.length;
    if (!connection->has_read) connection->has_read = 1, connection->speaks_openwire = !*at;
    for (;;) {
        while (at < end && *at == '\n' && !connection->speaks_openwire) at++;
        const char *next =
            at == end ? NULL : (connection->speaks_openwire ? on_command : on_frame)(connection, at, end);
        if (!next) break;
        at = next;
    }
    connection->in.length = end - at;
    memmove(connection->in.data, at, end - at);
}

static Connection *make_connection(int fd) {
    Connection *connection = calloc(1, sizeof *connection);
    if (!connection) fail("calloc");
    connection->fd = fd;
    if (fd < 0) return connection;
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event added = {.events = EPOLLIN, .data.ptr = connection};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &added);
    return connection;
}

static void give_number(Connection *connection) {
    if (numbered_count == numbered_room) {
        numbered_room = numbered_room ? numbered_room * 2 : 256;
        numbered = grown(numbered, numbered_room * sizeof *numbered);
    }
    connection->number = numbered_count;
    numbered[numbered_count++] = connection;
}

static void has_closed(Connection *connection) { /* small, and kept: effects may name it */
    connection->is_closed = 1;
    connection->waits_to_write = 0;
    leave(connection);
    if (connection->fd >= 0) close(connection->fd);
    free(connection->in.data);
    connection->in = (Bytes){0};
}

/* Pieces of clients: their commands in the store, their answers in the gateway. A piece of nothing ends one. */
static void take_pieces(void) {
    char *at = between->in.data, *end = at + between->in.length;
    for (uint32_t head[2]; end - at >= (long)sizeof head; at += sizeof head + head[1]) {
        memcpy(head, at, sizeof head);
        if (end - at < (long)(sizeof head + head[1])) break;
        while (head[0] >= numbered_count) give_number(make_connection(-1));
        Connection *connection = numbered[head[0]];
        if (!head[1]) {
            has_closed(connection);
        } else if (!connection->is_closed) {
            append(is_gateway ? &connection->out : &connection->in, at + sizeof head, head[1]);
            if (is_gateway) will_write(connection);
            else take_in(connection);
        }
    }
    between->in.length = end - at;
    memmove(between->in.data, at, end - at);
}

static int read_from(Connection *connection) {
    extend(&connection->in, READ_BYTES);
    connection->in.length -= READ_BYTES;
    ssize_t got = read(connection->fd, connection->in.data + connection->in.length, READ_BYTES);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    connection->in.length += got;
    if (connection == between) {
        take_pieces();
    } else if (is_gateway) {
        pass_on(connection, connection->in.data, got);
        connection->in.length = 0;
    } else {
        take_in(connection);
    }
    return 1;
}

static void take_effect(Batch *batch) {
    for (size_t number = 0; number < batch->count; number++) {
        Effect *one = &batch->effects[number];
        if (one->queue) enqueue(one->queue, one->message);
        else if (one->message) forget(one->message);
        if (one->connection->is_closed) continue;
        if (one->receipt[0]) receipt(one->connection, one->receipt);
        if (one->answers) answer(one->connection, one->command);
        if (one->freed) free_window(one->connection, one->freed);
    }
    batch->count = 0;
}

/* With copies, acknowledgements that nobody asked a receipt for wait for company, up to UNASKED_MS, as in the broker. */
static int wait_for_company(void) {
    if (!copies_count || is_late || !filling->records.length || filling->records.length > INLINE_BYTES) return 0;
    for (size_t number = 0; number < filling->count; number++) {
        Effect *one = &filling->effects[number];
        if (one->queue || one->receipt[0] || one->answers || one->freed) return 0;
    }
    return 1;
}

/* Sync what there is, unless a sync is under way: then it waits for the next one. */
static void commit(Batch **in_thread) {
    if (*in_thread || !(filling->count || filling->records.length) || wait_for_company()) return;
    Batch *batch = filling;
    if (batch->records.length > INLINE_BYTES) {
        filling = batch == &batches[0] ? &batches[1] : &batches[0];
        pthread_mutex_lock(&mutex);
        *in_thread = syncing = batch;
        pthread_cond_signal(&handed_over);
        pthread_mutex_unlock(&mutex);
        return;
    }
    if (batch->records.length) write_durable(&batch->records);
    take_effect(batch);
}

/* Rows of a data processor: no broker and no Spark, but the bytes of both, from their beginning to their last sync.
 *
 *     floor rows sink|source|direct ROWS BYTES DIRECTORY
 *
 * sink: two tasks write rows to two connections; they are read, copied with a CRC and written; one sync of the file,
 * then one answer. source: the reverse, with a settlement that is synced at the end. direct: two tasks read the file.
 */
enum { TASKS = 2, PIECE_ROWS = 1000, SETTLEMENT_BYTES = 64 };

typedef struct {
    int ends[2], number; /* the task's end of its connection, the server's */
    size_t bytes, row_bytes;
    double task_s, server_s;
} Part;

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void send_all(int fd, const char *data, size_t length) {
    while (length) {
        ssize_t wrote = write(fd, data, length);
        if (wrote < 0) fail("write");
        data += wrote;
        length -= wrote;
    }
}

/* Take all bytes of a part from a connection, with a copy and a CRC; into the file, if `stores`. */
static void take_all(Part *part, int fd, int stores) {
    char *in = grown(NULL, READ_BYTES), *copy = grown(NULL, READ_BYTES);
    for (size_t done = 0; done < part->bytes;) {
        ssize_t got = read(fd, in, READ_BYTES);
        if (got <= 0) fail("read");
        memcpy(copy, in, got);
        crc32_of((unsigned char *)copy, got);
        if (stores && pwrite(file_fd, copy, got, part->number * part->bytes + done) != got) fail("pwrite");
        done += got;
    }
    free(in);
    free(copy);
}

/* Read a part from the file, with its CRC; send it, or make columns of it (a copy). */
static void give_all(Part *part, int fd) {
    char *in = grown(NULL, READ_BYTES), *copy = grown(NULL, READ_BYTES);
    for (size_t done = 0; done < part->bytes;) {
        size_t wanted = part->bytes - done < READ_BYTES ? part->bytes - done : READ_BYTES;
        if (pread(file_fd, in, wanted, part->number * part->bytes + done) != (ssize_t)wanted) fail("pread");
        crc32_of((unsigned char *)in, wanted);
        if (fd < 0) memcpy(copy, in, wanted);
        else send_all(fd, in, wanted);
        done += wanted;
    }
    free(in);
    free(copy);
}

static void make_all(Part *part, int fd) {
    size_t room = PIECE_ROWS * part->row_bytes;
    char *row = grown(NULL, part->row_bytes), *piece = grown(NULL, room);
    memset(row, 'x', part->row_bytes);
    for (size_t done = 0; done < part->bytes;) {
        size_t length = part->bytes - done < room ? part->bytes - done : room;
        for (size_t at = 0; at < length; at += part->row_bytes) memcpy(piece + at, row, part->row_bytes);
        send_all(fd, piece, length);
        done += length;
    }
    free(row);
    free(piece);
}

static void *task_of_sink(void *part) {
    make_all(part, ((Part *)part)->ends[0]);
    ((Part *)part)->task_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void *server_of_sink(void *part) {
    take_all(part, ((Part *)part)->ends[1], 1);
    ((Part *)part)->server_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void *task_of_source(void *part) {
    take_all(part, ((Part *)part)->ends[0], 0);
    ((Part *)part)->task_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void *server_of_source(void *part) {
    give_all(part, ((Part *)part)->ends[1]);
    ((Part *)part)->server_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void *task_of_direct(void *part) {
    give_all(part, -1);
    ((Part *)part)->task_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static int rows(const char *way, size_t count, size_t row_bytes) {
    typedef void *(*Work)(void *);
    int sinks = !strcmp(way, "sink"), by_socket = sinks || !strcmp(way, "source");
    Work task = sinks ? task_of_sink : by_socket ? task_of_source : task_of_direct;
    Work server = sinks ? server_of_sink : by_socket ? server_of_source : NULL;
    char name[4096];
    snprintf(name, sizeof name, "%s/floor.rows", directory);
    file_fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    size_t bytes = count / TASKS * row_bytes;
    if (file_fd < 0 || posix_fallocate(file_fd, 0, TASKS * bytes + SETTLEMENT_BYTES) || fsync(file_fd)) fail(name);
    Part parts[TASKS] = {{{0}}};
    pthread_t threads[TASKS][2];
    for (int number = 0; number < TASKS; number++) {
        parts[number] = (Part){.number = number, .bytes = bytes, .row_bytes = row_bytes};
        if (by_socket) connect_both(parts[number].ends);
    }
    double start_s = seconds_of(CLOCK_MONOTONIC), own_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int number = 0; number < TASKS; number++) {
        if (pthread_create(&threads[number][0], NULL, task, &parts[number])) fail("pthread_create");
        if (server && pthread_create(&threads[number][1], NULL, server, &parts[number])) fail("pthread_create");
    }
    double task_s = 0, server_s = 0;
    for (int number = 0; number < TASKS; number++) {
        pthread_join(threads[number][0], NULL);
        if (server) pthread_join(threads[number][1], NULL);
        task_s += parts[number].task_s;
        server_s += parts[number].server_s;
    }
    char settlement[SETTLEMENT_BYTES] = {1};
    if (pwrite(file_fd, settlement, sizeof settlement, TASKS * bytes) != sizeof settlement) fail("pwrite");
    if (fdatasync(file_fd)) fail("fdatasync");
    server_s += seconds_of(CLOCK_THREAD_CPUTIME_ID) - own_s;
    double took_s = seconds_of(CLOCK_MONOTONIC) - start_s;
    unlink(name);
    printf("{\"per_s\": %.0f, \"task_us\": %.4f, \"server_us\": %.4f}\n", TASKS * (count / TASKS) / took_s,
           task_s / count * 1e6, server_s / count * 1e6);
    return 0;
}

int main(int count, char **words) {
    make_crc();
    if (count == 6 && !strcmp(words[1], "rows")) {
        directory = words[5];
        return rows(words[2], strtoul(words[3], NULL, 10), strtoul(words[4], NULL, 10));
    }
    int with_gateway = count == 4 && !strcmp(words[3], "gateway");
    int with_copies = count == 6 && !strcmp(words[3], "copies");
    if (count != 3 && !with_gateway && !with_copies) {
        fprintf(stderr, "usage: floor PORT DIRECTORY [gateway | copies COUNT NEEDED], "
                        "or floor rows sink|source|direct ROWS BYTES DIRECTORY\n");
        return 2;
    }
    directory = words[2];
    if (with_copies) make_copies(atoi(words[4]), atoi(words[5]));
    int ends[2] = {-1, -1}, listener = -1, yes = 1;
    if (with_gateway) {
        connect_both(ends);
        pid_t parent = getpid(), store = fork();
        if (store < 0) fail("fork");
        is_gateway = store > 0;
        if (!store && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) fail("the gateway");
        close(ends[is_gateway]);
    }
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &wake_fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, wake_fd, &event);
    if (with_gateway) {
        int fd = ends[!is_gateway];
        fcntl(fd, F_SETFL, O_NONBLOCK);
        between = make_connection(fd);
    }
    if (!with_gateway || is_gateway) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) fail("listen");
        event.data.ptr = &listener;
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, sync_batches, NULL)) fail("pthread_create");
    Batch *in_thread = NULL;
    for (;;) {
        struct epoll_event ready[EVENTS];
        int found = epoll_wait(poll_fd, ready, EVENTS, wait_for_company() ? UNASKED_MS : -1);
        is_late = !found;
        if (found < 0 && errno != EINTR) fail("epoll_wait");
        for (int number = 0; number < found; number++) {
            if (ready[number].data.ptr == &listener) {
                int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd < 0) continue;
                Connection *connection = make_connection(fd);
                if (is_gateway) give_number(connection);
            } else if (ready[number].data.ptr == &wake_fd) {
                eventfd_t times;
                if (!eventfd_read(wake_fd, &times)) {
                    take_effect(in_thread);
                    in_thread = NULL;
                }
            } else {
                Connection *connection = ready[number].data.ptr;
                if (ready[number].events & EPOLLOUT) will_write(connection);
                if (!(ready[number].events & ~EPOLLOUT) || read_from(connection)) continue;
                if (connection == between) return 0; /* the other process is gone */
                if (is_gateway) pass_on(connection, NULL, 0);
                has_closed(connection);
            }
        }
        do {
            commit(&in_thread);
            for (Queue *queue; (queue = due);) {
                due = queue->due;
                dispatch(queue);
            }
        } while (!in_thread && filling->records.length && !wait_for_company());
        for (Connection *connection; (connection = dirty);) {
            dirty = connection->dirty;
            flush(connection);
        }
        if (between && between->out.length) flush(between);
    }
}
