package suite;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import javax.jms.*;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQXAConnection;
import org.apache.activemq.ActiveMQXAConnectionFactory;

/**
 * What a program with a failover URL must not notice, or must be told, when the master dies before, during or after what
 * it does. All stories run beside each other, each in its own thread, and stop at three marks: before, during, after.
 * They print {"story": name, "mark": …} there, and go on when they read a line "go NAME". Their last line has "ok".
 */
public final class Matrix extends Theme {
    private static final long PATIENCE_MS = 150_000; // a takeover, the client's back-off, a busy machine
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, Semaphore> GATES = new ConcurrentHashMap<>();
    private static final List<Method> STORIES = Arrays.stream(Matrix.class.getDeclaredMethods())
        .filter(method -> method.isAnnotationPresent(Story.class)).sorted(Comparator.comparing(Method::getName)).toList();

    /** A feature through the death of the master. */
    @Retention(RetentionPolicy.RUNTIME)
    @interface Story {
        /** Its action is a request that the broker answers. */
        boolean answered() default true;
    }

    private String story;

    // -- the stage -----------------------------------------------------------------------------------------------

    public static void main(String[] words) throws Exception {
        if (words[0].equals("--list")) {
            for (Method method : STORIES) {
                OUT.println("{\"story\": " + Suite.json(method.getName()) + ", \"answered\": "
                    + method.getAnnotation(Story.class).answered() + "}");
            }
            return;
        }
        String url = words[0];
        List<String> wanted = Arrays.asList(words).subList(1, words.length);
        for (Method method : STORIES) {
            if (!wanted.isEmpty() && !wanted.contains(method.getName())) { continue; }
            GATES.put(method.getName(), new Semaphore(0));
            Thread thread = new Thread(() -> tell(method, url), method.getName());
            thread.setDaemon(true);
            thread.start();
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            GATES.get(line.substring("go ".length())).release();
        }
        System.exit(0);
    }

    private static void tell(Method method, String url) {
        Matrix matrix = new Matrix();
        matrix.story = method.getName();
        String detail = "";
        try {
            matrix.prepare(url, "Matrix." + matrix.story);
            try {
                method.invoke(matrix);
                matrix.noDeadLetters();
            } catch (InvocationTargetException problem) {
                throw problem.getCause();
            } finally {
                matrix.close();
            }
        } catch (Throwable problem) {
            StringWriter text = new StringWriter();
            problem.printStackTrace(new PrintWriter(text));
            detail = text.toString();
        }
        OUT.println("{\"story\": " + Suite.json(matrix.story) + ", \"ok\": " + detail.isEmpty() + ", \"detail\": "
            + Suite.json(detail) + "}");
    }

    private void mark(String name) throws InterruptedException {
        OUT.println("{\"story\": " + Suite.json(story) + ", \"mark\": " + Suite.json(name) + "}");
        GATES.get(story).acquire();
    }

    /** The action, between its marks. */
    private void around(Action action) throws Exception {
        mark("before");
        mark("during");
        action.run();
        mark("after");
    }

    // -- steps that stories share --------------------------------------------------------------------------------

    private Message marked(Session session, String text) throws JMSException {
        TextMessage message = session.createTextMessage(text);
        message.setStringProperty("mark", id);
        return message;
    }

    private void put(Session session, Destination to, int from, int until) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (String text : numbers(from, until)) { producer.send(marked(session, text)); }
        producer.close();
    }

    /** A consumer that pulls is told "nothing" at once by the client itself while that has no broker: ask again. */
    private static Message get(MessageConsumer consumer) throws JMSException {
        long giveUpAt = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        Message message = null;
        while (message == null && System.nanoTime() < giveUpAt) { message = consumer.receive(PATIENCE_MS); }
        check(message != null, "no message came");
        return message;
    }

    private static List<String> get(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = consumer.receive(PATIENCE_MS);
            check(message != null, "message " + i + " of " + count + " did not come; before it came " + texts);
            texts.add(text(message));
        }
        return texts;
    }

    /** What is in a queue, to the last message, taken by a connection of its own. */
    private List<String> drained(String suffix) throws JMSException {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + suffix));
        List<String> texts = new ArrayList<>();
        for (Message m = consumer.receive(1500); m != null; m = consumer.receive(1500)) { texts.add(text(m)); }
        connection.close();
        return texts;
    }

    private List<String> dead() throws JMSException {
        Session session = auto();
        return browse(session, session.createQueue("ActiveMQ.DLQ"), "mark = '" + id + "'");
    }

    private void noDeadLetters() throws JMSException {
        if (!story.equals("poison")) { equal(List.of(), dead(), "dead letters"); }
    }

    /** All came, and what came first came in order. */
    private static void complete(List<String> seen, int count) {
        equal(numbers(0, count), seen.stream().distinct().toList(), "in order of their first delivery, of " + seen);
    }

    private static boolean committed(Session session) throws JMSException {
        try {
            session.commit();
            return true;
        } catch (TransactionRolledBackException rolledBack) {
            return false;
        }
    }

    // -- sending -------------------------------------------------------------------------------------------------

    @Story public void sends() throws Exception {
        Session session = auto();
        put(session, queue(session), 0, 3);
        around(() -> put(session, queue(session), 3, 6));
        put(session, queue(session), 6, 8);
        equal(numbers(0, 8), drained(""));
    }

    @Story public void sendsOfOneProducer() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        producer.send(marked(session, "0"));
        around(() -> producer.send(marked(session, "1")));
        producer.send(marked(session, "2"));
        equal(numbers(0, 3), drained(""));
    }

    @Story public void largeSends() throws Exception {
        Session session = auto();
        String large = "x".repeat(300_000);
        MessageProducer producer = session.createProducer(queue(session));
        around(() -> producer.send(marked(session, large)));
        producer.send(marked(session, "end"));
        equal(List.of(large, "end"), drained(""));
    }

    @Story public void transactedSends() throws Exception {
        Session session = transacted();
        put(session, queue(session), 0, 3);
        session.commit();
        boolean[] told = new boolean[1];
        around(() -> {
            put(session, queue(session), 3, 6);
            told[0] = committed(session);
        });
        put(session, queue(session), 6, 8);
        check(committed(session), "the commit after the takeover failed");
        List<String> came = drained("");
        if (told[0] || came.contains("3")) { equal(numbers(0, 8), came); } else {
            equal(List.of("0", "1", "2", "6", "7"), came);
        }
    }

    @Story public void openTransactionOfSends() throws Exception {
        Session session = transacted();
        put(session, queue(session), 0, 3);
        boolean[] told = new boolean[1];
        around(() -> told[0] = committed(session));
        List<String> came = drained("");
        check(told[0] ? came.equals(numbers(0, 3)) : came.isEmpty() || came.equals(numbers(0, 3)), "came: " + came);
    }

    @Story public void compositeSends() throws Exception {
        Session session = auto();
        Queue both = session.createQueue(name() + ".a," + name() + ".b");
        put(session, both, 0, 1);
        around(() -> put(session, both, 1, 2));
        put(session, both, 2, 3);
        equal(numbers(0, 3), drained(".a"));
        equal(numbers(0, 3), drained(".b"));
    }

    @Story public void virtualTopic() throws Exception {
        Session session = auto();
        Topic topic = session.createTopic("VirtualTopic." + id);
        Queue queue = session.createQueue("Consumer.A.VirtualTopic." + id);
        session.createConsumer(queue).close();
        put(session, topic, 0, 1);
        around(() -> put(session, topic, 1, 2));
        put(session, topic, 2, 3);
        MessageConsumer consumer = session.createConsumer(queue);
        equal(numbers(0, 3), get(consumer, 3));
        equal(null, consumer.receive(500));
    }

    @Story public void scheduled() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        around(() -> {
            Message message = marked(session, "late");
            message.setLongProperty("AMQ_SCHEDULED_DELAY", 500);
            producer.send(message);
        });
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("late", text(get(consumer)));
        equal(null, consumer.receive(1500));
    }

    @Story public void durableSubscription() throws Exception {
        ActiveMQConnection connection = connectAs(id);
        Session session = connection.createSession(false, AUTO), sender = auto();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        put(sender, topic(sender), 0, 2);
        equal(numbers(0, 2), get(subscriber, 2));
        around(() -> put(sender, topic(sender), 2, 4));
        put(sender, topic(sender), 4, 5);
        List<String> came = new ArrayList<>(numbers(0, 2));
        while (!came.contains("4")) { came.add(text(get(subscriber))); }
        complete(came, 5);
        subscriber.close();
        session.unsubscribe("s");
    }

    // -- receiving -----------------------------------------------------------------------------------------------

    /** Ten messages, of which some come before and some after; all are seen, in order. */
    private void receives(int mode, String... options) throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 10);
        Session session = session(mode, options);
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<String> seen = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = get(consumer);
            seen.add(text(message));
            if (mode != AUTO) { message.acknowledge(); }
        }
        put(session, queue(session, "other"), 0, 1); // what was acknowledged before it is on disk
        around(() -> {
            Message message = get(consumer);
            seen.add(text(message));
            if (mode != AUTO) { message.acknowledge(); }
        });
        while (seen.stream().distinct().count() < 10) {
            Message message = get(consumer);
            seen.add(text(message));
            if (mode != AUTO) { message.acknowledge(); }
        }
        for (Message m = consumer.receive(1000); m != null; m = consumer.receive(1000)) {
            seen.add(text(m));
            if (mode != AUTO) { m.acknowledge(); }
        }
        complete(seen, 10);
        check(seen.size() <= 11, "more than the one in doubt came twice: " + seen);
        session.close();
        equal(List.of(), drained(""));
    }

    @Story(answered = false) public void autoReceives() throws Exception { receives(AUTO); }
    @Story(answered = false) public void clientAcknowledges() throws Exception { receives(CLIENT); }
    @Story(answered = false) public void individualAcknowledges() throws Exception { receives(INDIVIDUAL); }

    @Story(answered = false) public void pulls() throws Exception {
        receives(AUTO, "jms.prefetchPolicy.queuePrefetch=0");
    }

    @Story(answered = false) public void selectedReceives() throws Exception {
        Session sender = auto();
        MessageProducer producer = sender.createProducer(queue(sender));
        for (int i = 0; i < 8; i++) {
            Message message = marked(sender, String.valueOf(i / 2));
            message.setIntProperty("odd", i % 2);
            producer.send(message);
        }
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session), "odd = 1");
        List<String> seen = new ArrayList<>(get(consumer, 1));
        around(() -> seen.add(text(get(consumer))));
        while (!seen.contains("3")) { seen.add(text(get(consumer))); }
        complete(seen, 4);
        consumer.close();
        equal(numbers(0, 4), drained(""));
    }

    @Story public void listener() throws Exception {
        Session sender = auto();
        Session session = auto();
        LinkedBlockingQueue<String> seen = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { seen.add(text(m)); } catch (JMSException problem) { seen.add(problem.toString()); }
        });
        put(sender, queue(sender), 0, 5);
        around(() -> put(sender, queue(sender), 5, 8));
        put(sender, queue(sender), 8, 10);
        List<String> all = new ArrayList<>();
        while (new HashSet<>(all).size() < 10) {
            String text = seen.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
            check(text != null, "the rest does not come; it came " + all);
            all.add(text);
        }
        complete(all, 10);
        session.close();
        equal(List.of(), drained(""));
    }

    @Story public void unacknowledgedInHand() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 4);
        Session session = session(CLIENT);
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<String> seen = new ArrayList<>(get(consumer, 2));
        around(() -> {
            seen.add(text(get(consumer)));
            put(sender, queue(sender, "other"), 0, 1);
        });
        Message last = null;
        while (new HashSet<>(seen).size() < 4) { last = get(consumer); seen.add(text(last)); }
        for (Message m = consumer.receive(1000); m != null; m = consumer.receive(1000)) { last = m; seen.add(text(m)); }
        complete(seen, 4);
        last.acknowledge();
        session.close();
        check(drained("").stream().allMatch(numbers(0, 4)::contains), "strange messages are left");
    }

    @Story public void transactedReceives() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 6);
        Session session = transacted();
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<String> done = new ArrayList<>(get(consumer, 2)), doubtful = new ArrayList<>();
        session.commit();
        around(() -> {
            List<String> some = get(consumer, 2);
            (committed(session) ? done : doubtful).addAll(some);
        });
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            check(committed(session), "the commit after the takeover failed");
            done.add(text(m));
        }
        equal(done.size(), new HashSet<>(done).size(), "committed twice, of " + done);
        List<String> all = new ArrayList<>(done);
        doubtful.stream().filter(text -> !done.contains(text)).forEach(all::add);
        Collections.sort(all);
        equal(numbers(0, 6), all);
        session.close();
        equal(List.of(), drained(""));
    }

    @Story public void transfers() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 6);
        Session session = transacted();
        MessageConsumer consumer = session.createConsumer(queue(session));
        MessageProducer producer = session.createProducer(queue(session, "out"));
        Action one = () -> {
            producer.send(marked(session, text(get(consumer))));
            committed(session);
        };
        one.run();
        around(one);
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            producer.send(marked(session, text(m)));
            committed(session);
        }
        session.close();
        equal(List.of(), drained(""), "left");
        List<String> out = drained(".out");
        Collections.sort(out);
        equal(numbers(0, 6), out, "each once");
    }

    @Story public void openTransactionOfReceives() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 6);
        Session session = transacted();
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<String> first = get(consumer, 2), done = new ArrayList<>();
        around(() -> { if (committed(session)) { done.addAll(first); } });
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            if (committed(session)) { done.add(text(m)); }
        }
        equal(done.size(), new HashSet<>(done).size(), "committed twice, of " + done);
        check(done.containsAll(numbers(2, 6)), "not all were committed, of " + done);
        session.close();
        equal(List.of(), drained(""), "left, and committed were " + done);
    }

    @Story public void openTransfer() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 6);
        Session session = transacted();
        MessageConsumer consumer = session.createConsumer(queue(session));
        MessageProducer producer = session.createProducer(queue(session, "out"));
        producer.send(marked(session, text(get(consumer))));
        producer.send(marked(session, text(get(consumer))));
        around(() -> committed(session));
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            producer.send(marked(session, text(m)));
            committed(session);
        }
        session.close();
        equal(List.of(), drained(""), "left");
        List<String> out = drained(".out");
        Collections.sort(out);
        equal(numbers(0, 6), out, "each once");
    }

    @Story public void rollbacks() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 4);
        Session session = transacted("jms.redeliveryPolicy.initialRedeliveryDelay=0");
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(numbers(0, 2), get(consumer, 2));
        around(session::rollback);
        List<String> came = new ArrayList<>();
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            if (committed(session)) { came.add(text(m)); }
        }
        Collections.sort(came);
        equal(numbers(0, 4), came);
    }

    @Story public void poison() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 1);
        Session session = transacted("jms.redeliveryPolicy.initialRedeliveryDelay=0",
            "jms.redeliveryPolicy.redeliveryDelay=0", "jms.redeliveryPolicy.maximumRedeliveries=3");
        MessageConsumer consumer = session.createConsumer(queue(session));
        get(consumer);
        session.rollback();
        get(consumer);
        around(session::rollback);
        int more = 0;
        for (Message m = consumer.receive(2000); m != null; m = consumer.receive(2000)) {
            session.rollback();
            more++;
        }
        check(more >= 1 && more <= 4, "it came " + more + " times more");
        equal(List.of("0"), dead());
        session.close();
        equal(List.of(), drained(""));
    }

    @Story public void browsing() throws Exception {
        Session session = auto();
        put(session, queue(session), 0, 5);
        equal(numbers(0, 5), browse(session, queue(session)));
        around(() -> put(session, queue(session), 5, 6));
        equal(numbers(0, 6), browse(session, queue(session)));
        equal(numbers(0, 6), drained(""));
    }

    @Story public void groups() throws Exception {
        Session sender = auto(), one = auto(), two = auto();
        MessageConsumer[] both = {one.createConsumer(queue(one)), two.createConsumer(queue(two))};
        MessageProducer producer = sender.createProducer(queue(sender));
        int[] sent = new int[1];
        Action send = () -> {
            Message message = marked(sender, String.valueOf(sent[0]++));
            message.setStringProperty("JMSXGroupID", "g");
            producer.send(message);
        };
        send.run();
        around(send);
        send.run();
        send.run();
        List<String> seen = new ArrayList<>();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (new HashSet<>(seen).size() < 4 && System.currentTimeMillis() < until) {
            for (MessageConsumer each : both) {
                Message message = each.receive(200);
                if (message != null) { seen.add(text(message)); }
            }
        }
        complete(seen, 4);
    }

    @Story public void exclusiveConsumer() throws Exception {
        Session sender = auto(), one = auto(), two = auto();
        String options = "?consumer.exclusive=true";
        MessageConsumer first = one.createConsumer(one.createQueue(name() + options));
        MessageConsumer second = two.createConsumer(two.createQueue(name() + options));
        put(sender, queue(sender), 0, 1);
        equal("0", text(get(first)));
        around(() -> put(sender, queue(sender), 1, 2));
        put(sender, queue(sender), 2, 5);
        List<String> seen = new ArrayList<>(List.of("0"));
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (new HashSet<>(seen).size() < 5 && System.currentTimeMillis() < until) {
            for (MessageConsumer each : new MessageConsumer[] {first, second}) {
                Message message = each.receive(200);
                if (message != null) { seen.add(text(message)); }
            }
        }
        complete(seen, 5);
    }

    // -- requests and replies ------------------------------------------------------------------------------------

    @Story public void requests() throws Exception {
        Session server = auto(), session = auto();
        MessageProducer answers = server.createProducer(null);
        server.createConsumer(queue(server)).setMessageListener(request -> {
            try { answers.send(request.getJMSReplyTo(), marked(server, "re: " + text(request))); }
            catch (JMSException gone) { /* its client asks again */ }
        });
        TemporaryQueue reply = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(reply);
        MessageProducer producer = session.createProducer(queue(session));
        Action ask = () -> {
            Message request = marked(session, "x");
            request.setJMSReplyTo(reply);
            producer.send(request);
        };
        ask.run();
        equal("re: x", text(get(consumer)));
        around(ask);
        Message answer = consumer.receive(3000);
        for (int i = 0; answer == null && i < 10; i++) { // contents of temporary queues end with their master
            ask.run();
            answer = consumer.receive(3000);
        }
        equal("re: x", text(answer));
    }

    // -- two phases ----------------------------------------------------------------------------------------------

    private record Id(byte[] global) implements Xid {
        @Override public int getFormatId() { return 99; }
        @Override public byte[] getGlobalTransactionId() { return global; }
        @Override public byte[] getBranchQualifier() { return new byte[] {1}; }
    }

    private XASession xa() throws JMSException {
        ActiveMQXAConnection connection =
            closing((ActiveMQXAConnection) new ActiveMQXAConnectionFactory(url()).createXAConnection());
        connection.start();
        return connection.createXASession();
    }

    private boolean isPrepared(XAResource resource, Id xid) throws XAException {
        return Arrays.stream(resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN))
            .anyMatch(each -> Arrays.equals(each.getGlobalTransactionId(), xid.global()));
    }

    /** As a coordinator does: whatever the answer to a prepare was, the outcome is decided once and for all. */
    @Story public void prepares() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = new Id(id.getBytes(StandardCharsets.UTF_8));
        resource.start(xid, XAResource.TMNOFLAGS);
        put(session, queue(session), 0, 2);
        resource.end(xid, XAResource.TMSUCCESS);
        boolean[] yes = new boolean[1];
        around(() -> {
            try { yes[0] = resource.prepare(xid) == XAResource.XA_OK; } catch (XAException problem) { yes[0] = false; }
        });
        if (yes[0]) {
            resource.commit(xid, false);
            equal(numbers(0, 2), drained(""));
        } else {
            XAResource fresh = xa().getXAResource();
            if (isPrepared(fresh, xid)) { fresh.rollback(xid); }
            equal(List.of(), drained(""));
        }
        check(!isPrepared(xa().getXAResource(), xid), "it is still prepared");
    }

    @Story public void secondPhases() throws Exception {
        Session sender = auto();
        put(sender, queue(sender), 0, 2);
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = new Id(id.getBytes(StandardCharsets.UTF_8));
        MessageConsumer consumer = session.createConsumer(queue(session));
        resource.start(xid, XAResource.TMNOFLAGS);
        equal("0", text(get(consumer)));
        put(session, queue(session, "out"), 0, 2);
        resource.end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_OK, resource.prepare(xid));
        around(() -> {
            try { resource.commit(xid, false); } catch (XAException asksAgain) {
                XAResource fresh = xa().getXAResource();
                if (isPrepared(fresh, xid)) { fresh.commit(xid, false); }
            }
        });
        check(!isPrepared(xa().getXAResource(), xid), "it is still prepared");
        ((org.apache.activemq.ActiveMQSession) session).getConnection().close();
        equal(numbers(0, 2), drained(".out"));
        equal(List.of("1"), drained(""));
    }
}
