import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;

import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;

import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * JMS load generator on the unmodified ActiveMQ client: producers and consumers, each a thread with a connection of its
 * own. It prints one JSON line for a run, and ends with exit code 1 unless every message came exactly once.
 *
 * A run has two phases on the same connections: a warm-up, and the messages that are measured. The second begins when
 * all of the first were received and acknowledged. Its time ends with the last answer to a send or a commit and the last
 * acknowledgement. A body starts with the phase, the producer, the number of the message and the time of its sending.
 */
public final class JmsLoad {
    static final int HEAD_BYTES = 1 + 4 + 4 + 8;
    static final int INDIVIDUAL_ACKNOWLEDGE = 4; // as in ActiveMQSession
    static final int CLIENT_OVERHEAD_BYTES = 1024; // which the client adds to each body in its producer window
    static final long IDLE_MS = 100;
    static final long PENDING_MS = 20; // so long the acknowledgement of a batch that is not full waits for more
    static final long SURPLUS_MS = 100; // so long a consumer waits for messages that nobody sent
    static final String USAGE = """
        java JmsLoad --url tcp://HOST:PORT [OPTION VALUE]...     one run
        java JmsLoad --serve                                     a run for each line of options on standard input

        --url URL              of the broker
        --destination NAME     of the queue (bench.jms); of more queues NAME.0, NAME.1 ...
        --queues N             producers and consumers take them in turn (1)
        --producers N          (1)
        --consumers N          (1)
        --mode MODE            both; send: leave them in the queue; recv: take what a run with the same options left (both)
        --messages N           that are measured (10000)
        --warmup N             messages before them (1000; 0 unless the mode is both)
        --size BYTES           of a body (1024)
        --persistent BOOL      (true)
        --send MODE            default: the client waits for the answer if the message is persistent; sync: always;
                               async: never (useAsyncSend); transacted (default)
        --ack MODE             auto, dups-ok, client, individual, transacted (auto)
        --batch N              messages of a commit, and of an acknowledgement in mode client (100)
        --window N             messages of a producer that no consumer has yet; 0: any number (0)
        --producer-window N    messages that the broker has not confirmed with ProducerAck; 0: any number (0)
        --prefetch N           0: what the client takes by default (0)
        --login NAME --passcode WORD
        --timeout SECONDS      the longest time without progress (60)
        """;

    private JmsLoad() {}

    public static void main(String[] words) throws IOException {
        if (words.length == 0 || Arrays.asList(words).contains("--help")) {
            System.out.print(USAGE);
            System.exit(words.length == 0 ? 2 : 0);
        }
        if (!words[0].equals("--serve")) {
            System.exit(answer(words) ? 0 : 1);
        }
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            if (!answer(line.trim().split("\\s+"))) {
                System.exit(1); // its threads may hang in the client
            }
        }
    }

    /** One run, one line. False: it failed. */
    static boolean answer(String[] words) {
        String line;
        boolean done = false;
        try {
            line = new Run(Settings.of(words)).measure();
            done = true;
        } catch (IllegalArgumentException | LoadFailure | JMSException failure) {
            line = "{\"error\": " + quoted(failure.toString()) + "}";
        } catch (InterruptedException stopped) {
            line = "{\"error\": \"interrupted\"}";
        }
        System.out.println(line);
        System.out.flush();
        return done;
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    /** A message is missing or came twice, or a connection broke. */
    static final class LoadFailure extends Exception {
        private static final long serialVersionUID = 1;

        LoadFailure(String reason) {
            super(reason);
        }

        @Override
        public String toString() {
            return getMessage();
        }
    }

    /** The options of a run. */
    record Settings(
            String url, String destination, String mode, int queues, int producers, int consumers, int messages, int warmup, int size,
            boolean persistent, String send, String ack, int batch, int window, int producerWindow, int prefetch,
            String login, String passcode, int timeoutSeconds) {

        static Settings of(String[] words) {
            Options options = new Options(words);
            String mode = options.choice("mode", "both", "send", "recv");
            int warmup = options.number("warmup", 1000, 0);
            Settings made = new Settings(
                    options.word("url", ""), options.word("destination", "bench.jms"), mode,
                    options.number("queues", 1, 1), options.number("producers", 1, 1), options.number("consumers", 1, 1),
                    options.number("messages", 10_000, 1), mode.equals("both") ? warmup : 0,
                    options.number("size", 1024, HEAD_BYTES), options.choice("persistent", "true", "false").equals("true"),
                    options.choice("send", "default", "sync", "async", "transacted"),
                    options.choice("ack", "auto", "dups-ok", "client", "individual", "transacted"),
                    options.number("batch", 100, 1), options.number("window", 0, 0),
                    options.number("producer-window", 0, 0), options.number("prefetch", 0, 0), options.word("login", ""),
                    options.word("passcode", ""), options.number("timeout", 60, 1));
            options.refuseOthers();
            if (made.url.isEmpty()) {
                throw new IllegalArgumentException("--url is missing: which broker?");
            }
            if (made.queues > Math.min(made.producers, made.consumers)) {
                throw new IllegalArgumentException("each of " + made.queues + " queues needs a producer and a consumer");
            }
            if (made.send.equals("transacted") && made.window > 0 && made.window < made.batch) {
                throw new IllegalArgumentException("a window smaller than a commit never lets it be sent");
            }
            if (!mode.equals("both") && made.window > 0) {
                throw new IllegalArgumentException("a window counts what was received: it is for --mode both");
            }
            return made;
        }

        boolean sends() {
            return !mode.equals("recv");
        }

        boolean receives() {
            return !mode.equals("send");
        }

        int workers() {
            return (sends() ? producers : 0) + (receives() ? consumers : 0);
        }

        /** The URL with what the client is to do. */
        String clientUrl() {
            StringBuilder out = new StringBuilder(url);
            if (send.equals("async")) {
                add(out, "jms.useAsyncSend=true");
            } else if (send.equals("sync")) {
                add(out, "jms.alwaysSyncSend=true");
            }
            if (producerWindow > 0) {
                add(out, "jms.producerWindowSize=" + (long) producerWindow * (size + CLIENT_OVERHEAD_BYTES));
            }
            if (prefetch > 0) {
                add(out, "jms.prefetchPolicy.all=" + prefetch);
            }
            return out.toString();
        }

        private static void add(StringBuilder out, String option) {
            out.append(out.indexOf("?") < 0 ? '?' : '&').append(option);
        }

        String queue(int worker) {
            return queues == 1 ? destination : destination + "." + worker % queues;
        }

        static int quota(int messages, int producers, int producer) {
            return messages / producers + (producer < messages % producers ? 1 : 0);
        }

        int acknowledgement() {
            return switch (ack) {
                case "auto" -> Session.AUTO_ACKNOWLEDGE;
                case "dups-ok" -> Session.DUPS_OK_ACKNOWLEDGE;
                case "client" -> Session.CLIENT_ACKNOWLEDGE;
                case "individual" -> INDIVIDUAL_ACKNOWLEDGE;
                default -> Session.SESSION_TRANSACTED;
            };
        }
    }

    /** The words "--name value" of a command. */
    static final class Options {
        private final Map<String, String> given = new HashMap<>();

        Options(String[] words) {
            for (int i = 0; i < words.length; i += 2) {
                if (!words[i].startsWith("--") || i + 1 == words.length) {
                    throw new IllegalArgumentException(words[i] + ": write --NAME VALUE; --help names them all");
                }
                given.put(words[i].substring(2), words[i + 1]);
            }
        }

        String word(String name, String otherwise) {
            String value = given.remove(name);
            return value == null ? otherwise : value;
        }

        int number(String name, int otherwise, int least) {
            String value = word(name, Integer.toString(otherwise));
            int number;
            try {
                number = Integer.parseInt(value);
            } catch (NumberFormatException none) {
                throw new IllegalArgumentException("--" + name + " is a number, not " + value);
            }
            if (number < least) {
                throw new IllegalArgumentException("--" + name + " is at least " + least + ", not " + value);
            }
            return number;
        }

        /** One of `choices`; the first of them if none was given. */
        String choice(String name, String... choices) {
            String value = word(name, choices[0]);
            if (!Arrays.asList(choices).contains(value)) {
                throw new IllegalArgumentException("--" + name + " is one of " + String.join(", ", choices));
            }
            return value;
        }

        void refuseOthers() {
            if (!given.isEmpty()) {
                throw new IllegalArgumentException("unknown options " + given.keySet() + ": --help names them all");
            }
        }
    }

    /** What was sent and received of one phase. */
    static final class Phase {
        final int number;
        final int messages;
        final int producers;
        final CountDownLatch begin = new CountDownLatch(1);
        final CountDownLatch done;
        final AtomicInteger sent = new AtomicInteger();
        final AtomicInteger received = new AtomicInteger();
        final AtomicIntegerArray[] seen; // a bit for each message of a producer
        final Samples[] deliveries;
        final Samples[] confirmations;
        final long[] ended;

        Phase(int number, int messages, Settings settings) {
            this.number = number;
            this.messages = messages;
            producers = settings.producers;
            done = new CountDownLatch(settings.workers());
            seen = new AtomicIntegerArray[producers];
            Arrays.setAll(seen, i -> new AtomicIntegerArray(quota(i) / 32 + 1));
            deliveries = new Samples[settings.consumers];
            Arrays.setAll(deliveries, i -> new Samples());
            confirmations = new Samples[producers];
            Arrays.setAll(confirmations, i -> new Samples());
            ended = new long[settings.producers + settings.consumers];
        }

        int quota(int producer) {
            return Settings.quota(messages, producers, producer);
        }

        boolean complete() {
            return received.get() >= messages;
        }

        void note(int fromPhase, int producer, int message) throws LoadFailure {
            if (fromPhase != number || producer < 0 || producer >= producers || message < 0 || message >= quota(producer)) {
                throw new LoadFailure(
                        "message " + message + " of producer " + producer + " in phase " + fromPhase
                        + " came in phase " + number + ": it came more than once, or nobody sent it");
            }
            int bit = 1 << (message & 31);
            int before = seen[producer].getAndUpdate(message >> 5, word -> word | bit);
            if ((before & bit) != 0) {
                throw new LoadFailure("message " + message + " of producer " + producer + " came more than once");
            }
            received.incrementAndGet();
        }
    }

    /** Microseconds, one for each event; for one thread. */
    static final class Samples {
        int[] micros = new int[1024];
        int count;

        void addNanos(long nanos) {
            if (count == micros.length) {
                micros = Arrays.copyOf(micros, 2 * count);
            }
            micros[count++] = (int) Math.min(Integer.MAX_VALUE, nanos / 1000);
        }

        static String json(Samples[] all) {
            int[] sorted = Arrays.stream(all).flatMapToInt(one -> Arrays.stream(one.micros, 0, one.count)).sorted().toArray();
            if (sorted.length == 0) {
                return "{}";
            }
            return String.format(
                    "{\"p50\": %d, \"p90\": %d, \"p99\": %d, \"max\": %d}", part(sorted, 0.5), part(sorted, 0.9),
                    part(sorted, 0.99), sorted[sorted.length - 1]);
        }

        private static int part(int[] sorted, double share) {
            return sorted[(int) Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
        }
    }

    /** One run: workers, phases, the clock. */
    static final class Run {
        final Settings settings;
        final List<Phase> phases = new ArrayList<>();
        final AtomicReference<String> failure = new AtomicReference<>();
        final Semaphore[] windows; // of each producer
        final CountDownLatch ready;
        final CountDownLatch over;
        final byte[] filling;

        Run(Settings settings) {
            this.settings = settings;
            if (settings.warmup > 0) {
                phases.add(new Phase(0, settings.warmup, settings));
            }
            phases.add(new Phase(1, settings.messages, settings));
            windows = new Semaphore[settings.producers];
            Arrays.setAll(windows, i -> settings.window > 0 ? new Semaphore(settings.window) : null);
            ready = new CountDownLatch(settings.workers());
            over = new CountDownLatch(settings.workers());
            filling = new byte[settings.size];
            new Random(1).nextBytes(filling);
        }

        String measure() throws LoadFailure, JMSException, InterruptedException {
            ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(settings.clientUrl());
            if (!settings.login.isEmpty()) {
                factory.setUserName(settings.login);
                factory.setPassword(settings.passcode);
            }
            for (int i = 0; i < settings.consumers && settings.receives(); i++) {
                start(new Consumer(this, i), factory);
            }
            for (int i = 0; i < settings.producers && settings.sends(); i++) {
                start(new Producer(this, i), factory);
            }
            await(ready, "to be connected");
            long start = 0;
            long cpu = 0;
            for (Phase phase : phases) {
                cpu = cpuNanos();
                start = System.nanoTime();
                phase.begin.countDown();
                await(phase.done, "of phase " + phase.number);
            }
            cpu = cpuNanos() - cpu;
            await(over, "to close");
            Phase phase = phases.get(phases.size() - 1);
            double seconds = (Arrays.stream(phase.ended).max().getAsLong() - start) / 1e9;
            return String.format(
                    Locale.ROOT,
                    "{\"messages\": %d, \"seconds\": %.4f, \"per_s\": %.1f, \"delivery_us\": %s, \"confirm_us\": %s, "
                    + "\"generator_cpu_us\": %.1f}",
                    settings.messages, seconds, settings.messages / seconds, settings.sends() ? Samples.json(phase.deliveries) : "{}",
                    Samples.json(phase.confirmations), cpu / 1e3 / settings.messages);
        }

        private void start(Worker worker, ActiveMQConnectionFactory factory) throws JMSException {
            Connection connection = factory.createConnection();
            connection.setExceptionListener(error -> fail("connection of " + worker + ": " + error));
            worker.connection = connection;
            Thread thread = new Thread(worker, worker.toString());
            thread.setDaemon(true);
            thread.start();
        }

        /** Wait for all workers. There is no limit to the time, as long as messages come and go. */
        private void await(CountDownLatch latch, String what) throws LoadFailure, InterruptedException {
            long before = -1;
            long since = System.nanoTime();
            while (!latch.await(IDLE_MS, TimeUnit.MILLISECONDS)) {
                if (failure.get() != null) {
                    throw new LoadFailure(failure.get());
                }
                long progress = latch.getCount() << 32;
                for (Phase phase : phases) {
                    progress += phase.sent.get() + phase.received.get();
                }
                if (progress != before) {
                    before = progress;
                    since = System.nanoTime();
                } else if (System.nanoTime() - since > settings.timeoutSeconds * 1_000_000_000L) {
                    StringBuilder state = new StringBuilder();
                    for (Phase phase : phases) {
                        state.append(String.format(
                                "; phase %d: sent %d, received %d of %d", phase.number, phase.sent.get(),
                                phase.received.get(), phase.messages));
                    }
                    throw new LoadFailure(
                            latch.getCount() + " workers " + what + " are missing, then nothing for "
                            + settings.timeoutSeconds + " s" + state);
                }
            }
            if (failure.get() != null) {
                throw new LoadFailure(failure.get());
            }
        }

        void fail(String reason) {
            failure.compareAndSet(null, reason);
        }

        private static long cpuNanos() {
            return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                    .getProcessCpuTime();
        }
    }

    /** A thread with a connection. */
    abstract static class Worker implements Runnable {
        final Run run;
        final Settings settings;
        final int number;
        Connection connection;
        private boolean closed;

        Worker(Run run, int number) {
            this.run = run;
            this.settings = run.settings;
            this.number = number;
        }

        abstract void connect() throws JMSException;

        /** The work of one phase; the time at which it was done. */
        abstract long work(Phase phase) throws JMSException, LoadFailure, InterruptedException;

        abstract int place();

        void finish() throws JMSException, LoadFailure {}

        void close() throws JMSException {
            if (!closed) {
                closed = true;
                connection.setExceptionListener(null);
                connection.close();
            }
        }

        @Override
        public void run() {
            try {
                connect();
                run.ready.countDown();
                for (Phase phase : run.phases) {
                    phase.begin.await();
                    phase.ended[place()] = work(phase);
                    phase.done.countDown();
                }
                finish();
                close();
                run.over.countDown();
            } catch (JMSException | LoadFailure | RuntimeException error) {
                run.fail(this + ": " + error);
            } catch (InterruptedException stopped) {
                run.fail(this + " was interrupted");
            }
        }
    }

    static final class Producer extends Worker {
        private Session session;
        private MessageProducer producer;
        private final boolean transacted;
        private final boolean waits;

        Producer(Run run, int number) {
            super(run, number);
            transacted = settings.send.equals("transacted");
            waits = settings.send.equals("sync") || settings.send.equals("default") && settings.persistent;
        }

        @Override
        public String toString() {
            return "producer " + number;
        }

        @Override
        int place() {
            return number;
        }

        @Override
        void connect() throws JMSException {
            connection.start();
            session = connection.createSession(transacted, transacted ? 0 : Session.AUTO_ACKNOWLEDGE);
            producer = session.createProducer(session.createQueue(settings.queue(number)));
            producer.setDeliveryMode(settings.persistent ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT);
        }

        @Override
        long work(Phase phase) throws JMSException, InterruptedException {
            int quota = phase.quota(number);
            byte[] body = run.filling.clone();
            Semaphore window = run.windows[number];
            Samples confirmations = phase.confirmations[number];
            for (int i = 0; i < quota; i++) {
                if (window != null && !window.tryAcquire()) {
                    if (transacted && i % settings.batch != 0) {
                        commit(confirmations); // what consumers get cannot be what is uncommitted
                    }
                    window.acquire();
                }
                BytesMessage message = session.createBytesMessage();
                long now = System.nanoTime();
                ByteBuffer.wrap(body).put((byte) phase.number).putInt(number).putInt(i).putLong(now);
                message.writeBytes(body);
                producer.send(message);
                phase.sent.incrementAndGet();
                if (waits) {
                    confirmations.addNanos(System.nanoTime() - now);
                }
                if (transacted && ((i + 1) % settings.batch == 0 || i + 1 == quota)) {
                    commit(confirmations);
                }
            }
            if (!settings.receives()) {
                close(); // is answered behind the last message
            }
            return System.nanoTime();
        }

        private void commit(Samples confirmations) throws JMSException {
            long now = System.nanoTime();
            session.commit();
            confirmations.addNanos(System.nanoTime() - now);
        }
    }

    static final class Consumer extends Worker {
        private Session session;
        private MessageConsumer consumer;
        private final boolean transacted;
        private final int batch; // received messages of one acknowledgement or commit; 1 = the client does it, or each
        private final byte[] head = new byte[HEAD_BYTES];

        Consumer(Run run, int number) {
            super(run, number);
            transacted = settings.ack.equals("transacted");
            batch = transacted || settings.ack.equals("client") ? settings.batch : 1;
        }

        @Override
        public String toString() {
            return "consumer " + number;
        }

        @Override
        int place() {
            return settings.producers + number;
        }

        @Override
        void connect() throws JMSException {
            connection.start();
            session = connection.createSession(transacted, settings.acknowledgement());
            consumer = session.createConsumer(session.createQueue(settings.queue(number)));
        }

        @Override
        long work(Phase phase) throws JMSException, LoadFailure {
            Samples deliveries = phase.deliveries[number];
            long ended = System.nanoTime();
            int pending = 0;
            Message last = null;
            while (pending > 0 || !phase.complete()) {
                Message message = consumer.receive(pending > 0 ? PENDING_MS : IDLE_MS);
                if (message != null) {
                    take(message, phase, deliveries);
                    last = message;
                    pending++;
                }
                if (pending >= batch || message == null && pending > 0) {
                    acknowledge(last);
                    pending = 0;
                    ended = System.nanoTime();
                }
            }
            return ended;
        }

        private void take(Message message, Phase phase, Samples deliveries) throws JMSException, LoadFailure {
            if (!(message instanceof BytesMessage bytes) || bytes.getBodyLength() != settings.size) {
                throw new LoadFailure("a message came that nobody sent: " + message);
            }
            bytes.readBytes(head);
            ByteBuffer fields = ByteBuffer.wrap(head);
            int fromPhase = fields.get();
            int producer = fields.getInt();
            int sequence = fields.getInt();
            deliveries.addNanos(System.nanoTime() - fields.getLong());
            phase.note(fromPhase, producer, sequence);
            if (run.windows[producer] != null) {
                run.windows[producer].release();
            }
        }

        private void acknowledge(Message last) throws JMSException {
            if (transacted) {
                session.commit();
            } else if (settings.ack.equals("client") || settings.ack.equals("individual")) {
                last.acknowledge();
            }
        }

        @Override
        void finish() throws JMSException, LoadFailure {
            Message surplus = consumer.receive(SURPLUS_MS);
            if (surplus != null) {
                throw new LoadFailure("a message came more than once, or nobody sent it: " + surplus.getJMSMessageID());
            }
        }
    }
}
