package suite;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import javax.jms.*;

/**
 * A program that works while its queues get another home: it asks for replies on a temporary queue, and sends messages
 * of groups to two consumers, which commit each by itself. Each line "tell" on its input is answered with how many
 * replies and messages there were; after "stop", and when all that was sent has come, it prints what each consumer has
 * committed, in order. Words: the URLs, as in Theme, so its connections go to one node after the other; the queue of the
 * requests; that of the groups.
 */
public final class Moved extends Theme {
    private static final int GROUPS = 4;
    private static final long PAUSE_MS = 5;
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final AtomicInteger replies = new AtomicInteger(), taken = new AtomicInteger();
    private final List<List<String>> committed = new ArrayList<>();
    private final ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
    private final String requests, groups;
    private volatile int sent;
    private volatile long longestMs; // between two messages at a consumer
    private volatile boolean stopped;

    private Moved(String requests, String groups) {
        this.requests = requests;
        this.groups = groups;
    }

    public static void main(String[] words) throws Exception {
        Moved moved = new Moved(words[1], words[2]);
        moved.prepare(words[0], "moved");
        moved.work();
        System.exit(0);
    }

    private void work() throws Exception {
        Session server = auto();
        MessageConsumer asked = server.createConsumer(server.createQueue(requests));
        MessageProducer answers = server.createProducer(null);
        asked.setMessageListener(request -> {
            try {
                TextMessage reply = server.createTextMessage(text(request));
                reply.setJMSCorrelationID(request.getJMSCorrelationID());
                answers.send(request.getJMSReplyTo(), reply);
            } catch (JMSException problem) { note(problem); }
        });
        List<Thread> takers = List.of(taker(), taker());
        List<Thread> threads = List.of(begin(this::ask), begin(this::send));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line.equals("tell"); line = in.readLine()) {
            OUT.println(replies + " " + taken + " " + problems.size());
        }
        stopped = true;
        for (Thread thread : threads) { thread.join(); }
        eventually(() -> taken.get() >= sent || !problems.isEmpty(), "all that was sent");
        Thread.sleep(QUIET_MS); // for what must not come
        OUT.println("{\"replies\": " + replies + ", \"sent\": " + sent + ", \"longest_ms\": " + longestMs
            + ", \"committed\": " + committed + ", \"problems\": "
            + problems.stream().map(Suite::json).toList() + "}");
    }

    private void note(Throwable problem) {
        StringWriter text = new StringWriter();
        problem.printStackTrace(new PrintWriter(text));
        problems.add(text.toString());
    }

    private Thread begin(Action action) {
        Thread thread = new Thread(() -> {
            try { action.run(); } catch (Throwable problem) { note(problem); }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void ask() throws Exception {
        Session session = auto();
        TemporaryQueue inbox = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(inbox);
        MessageProducer producer = session.createProducer(session.createQueue(requests));
        for (int number = 0; !stopped; number++) {
            String asked = String.valueOf(number);
            TextMessage request = session.createTextMessage(asked);
            request.setJMSCorrelationID(asked);
            request.setJMSReplyTo(inbox);
            producer.send(request);
            Message reply = next(consumer);
            while (Integer.parseInt(reply.getJMSCorrelationID()) < number) { reply = next(consumer); } // it came again
            equal(asked, text(reply));
            replies.incrementAndGet();
            Thread.sleep(PAUSE_MS);
        }
    }

    private void send() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(session.createQueue(groups));
        for (int number = 0; !stopped; number++) {
            TextMessage message = session.createTextMessage(String.valueOf(number));
            message.setStringProperty("JMSXGroupID", "g" + number % GROUPS);
            producer.send(message);
            sent = number + 1;
            Thread.sleep(PAUSE_MS);
        }
    }

    /** Its messages, each committed by itself: what was rolled back comes again. */
    private Thread taker() throws Exception {
        Session session = transacted("jms.redeliveryPolicy.initialRedeliveryDelay=0",
            "jms.redeliveryPolicy.redeliveryDelay=0");
        MessageConsumer consumer = session.createConsumer(session.createQueue(groups));
        List<String> mine = Collections.synchronizedList(new ArrayList<>());
        committed.add(mine);
        return begin(() -> {
            long before = System.nanoTime();
            while (true) {
                Message message = consumer.receive(SOON_MS);
                if (message == null) { continue; }
                longestMs = Math.max(longestMs, (System.nanoTime() - before) / 1_000_000);
                before = System.nanoTime();
                try {
                    session.commit();
                } catch (TransactionRolledBackException rolledBack) { continue; }
                mine.add(text(message));
                taken.incrementAndGet();
            }
        });
    }
}
