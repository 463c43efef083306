package suite;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.ExceptionListener;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.TextMessage;
import javax.jms.Topic;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQSession;

/** What cases share: connections that close themselves, names that nobody else uses, and checks. */
public abstract class Theme {
    /** How long a message that must come may take. */
    static final long SOON_MS = 60_000; // only a hang takes so long, also on a busy machine
    /** How long is listened for a message that must not come. */
    static final long QUIET_MS = 300;
    static final int AUTO = Session.AUTO_ACKNOWLEDGE;
    static final int CLIENT = Session.CLIENT_ACKNOWLEDGE;
    static final int DUPS_OK = Session.DUPS_OK_ACKNOWLEDGE;
    static final int INDIVIDUAL = ActiveMQSession.INDIVIDUAL_ACKNOWLEDGE;

    /** Unique to this run of this case: also a fit client id and property value. */
    String id;

    private String[] urls;
    private int made;
    private final List<Connection> connections = Collections.synchronizedList(new ArrayList<>());

    void prepare(String brokers, String name) {
        urls = brokers.split(";");
        id = name + "." + UUID.randomUUID().toString().substring(0, 8);
    }

    void close() throws JMSException {
        for (Connection connection : new ArrayList<>(connections)) {
            connection.close();
        }
    }

    // -- connections ---------------------------------------------------------------------------------------------

    /** A factory for the next of the URLs; options as in an ActiveMQ URL, such as "jms.useAsyncSend=true". */
    ActiveMQConnectionFactory factory(String... options) {
        String all = String.join("&", options);
        String url = url();
        String sign = url.contains("?") ? "&" : "?";
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(all.isEmpty() ? url : url + sign + all);
        factory.setTrustAllPackages(true);
        return factory;
    }

    synchronized String url() {
        return urls[made++ % urls.length];
    }

    <T extends Connection> T closing(T connection) {
        connections.add(connection);
        return connection;
    }

    /** A connection that is not started. */
    ActiveMQConnection open(String... options) throws JMSException {
        return closing((ActiveMQConnection) factory(options).createConnection());
    }

    /** A started connection. */
    ActiveMQConnection connect(String... options) throws JMSException {
        ActiveMQConnection connection = open(options);
        connection.start();
        return connection;
    }

    /** A started connection with a client id. */
    ActiveMQConnection connectAs(String clientId, String... options) throws JMSException {
        ActiveMQConnection connection = open(options);
        connection.setClientID(clientId);
        connection.start();
        return connection;
    }

    /** A session of a new, started connection. */
    Session session(int mode, String... options) throws JMSException {
        return connect(options).createSession(false, mode);
    }

    Session auto() throws JMSException {
        return session(AUTO);
    }

    /** A transacted session of a new, started connection. */
    Session transacted(String... options) throws JMSException {
        return connect(options).createSession(true, Session.SESSION_TRANSACTED);
    }

    // -- destinations --------------------------------------------------------------------------------------------

    String name() {
        return "jms." + id;
    }

    Queue queue(Session session) throws JMSException {
        return session.createQueue(name());
    }

    Topic topic(Session session) throws JMSException {
        return session.createTopic(name());
    }

    Queue queue(Session session, String suffix) throws JMSException {
        return session.createQueue(name() + "." + suffix);
    }

    Topic topic(Session session, String suffix) throws JMSException {
        return session.createTopic(name() + "." + suffix);
    }

    // -- messages ------------------------------------------------------------------------------------------------

    void send(Session session, Destination to, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    /** Sends "0", "1", … */
    void count(Session session, Destination to, int messages) throws JMSException {
        send(session, to, numbers(0, messages).toArray(new String[0]));
    }

    void sendQuickly(Session session, Destination to, int messages) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        for (int i = 0; i < messages; i++) {
            producer.send(session.createTextMessage(String.valueOf(i)));
        }
        producer.close();
    }

    static List<String> numbers(int from, int to) {
        List<String> numbers = new ArrayList<>();
        for (int i = from; i < to; i++) {
            numbers.add(String.valueOf(i));
        }
        return numbers;
    }

    /** The next message, which must come. */
    static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(SOON_MS);
        check(message != null, "no message came within " + SOON_MS + " ms");
        return message;
    }

    @SuppressWarnings("unchecked")
    static <T extends Message> T next(MessageConsumer consumer, Class<T> kind) throws JMSException {
        Message message = next(consumer);
        check(kind.isInstance(message), "not a " + kind.getSimpleName() + ": " + message);
        return (T) message;
    }

    static String text(Message message) throws JMSException {
        check(message instanceof TextMessage, "not a text message: " + message);
        return ((TextMessage) message).getText();
    }

    static String nextText(MessageConsumer consumer) throws JMSException {
        return text(next(consumer));
    }

    static List<String> nextTexts(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = consumer.receive(SOON_MS);
            check(message != null, "message " + i + " of " + count + " did not come; before it came " + texts);
            texts.add(text(message));
        }
        return texts;
    }

    /** The texts that come until nothing comes any more. */
    static List<String> rest(MessageConsumer consumer) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (Message message = consumer.receive(QUIET_MS); message != null; message = consumer.receive(QUIET_MS)) {
            texts.add(text(message));
        }
        return texts;
    }

    /** Fails unless these texts come, and then nothing more. */
    static void comes(List<String> expected, MessageConsumer consumer) throws JMSException {
        List<String> texts = new ArrayList<>();
        Message message = null;
        do {
            message = consumer.receive(texts.size() < expected.size() ? SOON_MS : QUIET_MS);
            if (message != null) { texts.add(text(message)); }
        } while (message != null);
        equal(expected, texts);
    }

    static void nothing(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(QUIET_MS);
        check(message == null, "a message came that must not: " + message);
    }

    /** The texts in a queue, by a browser. */
    static List<String> browse(Session session, Queue queue) throws JMSException {
        return browse(session, queue, null);
    }

    static List<String> browse(Session session, Queue queue, String selector) throws JMSException {
        QueueBrowser browser = session.createBrowser(queue, selector);
        List<String> texts = new ArrayList<>();
        for (Enumeration<?> all = browser.getEnumeration(); all.hasMoreElements(); ) {
            texts.add(text((Message) all.nextElement()));
        }
        browser.close();
        return texts;
    }

    static <T> T take(BlockingQueue<T> from) throws InterruptedException {
        T taken = from.poll(SOON_MS, TimeUnit.MILLISECONDS);
        check(taken != null, "nothing came within " + SOON_MS + " ms");
        return taken;
    }

    static <T> List<T> take(BlockingQueue<T> from, int count) throws InterruptedException {
        List<T> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            T taken = from.poll(SOON_MS, TimeUnit.MILLISECONDS);
            check(taken != null, "element " + i + " of " + count + " did not come; before it came " + all);
            all.add(taken);
        }
        return all;
    }

    // -- checks --------------------------------------------------------------------------------------------------

    interface Action {
        void run() throws Exception;
    }

    interface Question {
        boolean ask() throws Exception;
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object actual) {
        equal(expected, actual, "value");
    }

    static void equal(Object expected, Object actual, String what) {
        boolean same = expected instanceof byte[] bytes && actual instanceof byte[] others
            ? Arrays.equals(bytes, others) : Objects.equals(expected, actual);
        check(same, what + ": expected <" + brief(expected) + "> but it is <" + brief(actual) + ">");
    }

    private static String brief(Object value) {
        String text = value instanceof byte[] bytes ? Arrays.toString(bytes) : String.valueOf(value);
        return text.length() <= 600 ? text : text.substring(0, 600) + "… (" + text.length() + " characters)";
    }

    static <T extends Exception> T fails(Class<T> with, Action action) {
        try {
            action.run();
        } catch (Exception problem) {
            if (with.isInstance(problem)) {
                return with.cast(problem);
            }
            throw new AssertionError("failed with the wrong exception: expected " + with.getName(), problem);
        }
        throw new AssertionError("did not fail: expected " + with.getName());
    }

    static void eventually(Question question, String otherwise) throws Exception {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SOON_MS);
        while (!question.ask()) {
            check(System.nanoTime() < until, "not within " + SOON_MS + " ms: " + otherwise);
            Thread.sleep(20);
        }
    }

    /** Notes what a connection reports. */
    static final class Reports implements ExceptionListener {
        final BlockingQueue<JMSException> all = new java.util.concurrent.LinkedBlockingQueue<>();

        @Override
        public void onException(JMSException problem) {
            all.add(problem);
        }
    }
}
