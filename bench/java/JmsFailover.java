import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;

import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.transport.DefaultTransportListener;

/**
 * Two JMS clients that fail over: when does the next master give a message to the one, and answer the send of the other?
 *
 * Once both were served by the first master, the program prints "ready" and the time. After the loss of that master it
 * prints one JSON line with times, all of CLOCK_MONOTONIC, which is also that of other programs on this host.
 */
public final class JmsFailover {
    static final long GIVE_UP_SECONDS = 120;

    private JmsFailover() {}

    public static void main(String[] words) {
        if (words.length != 3) {
            System.out.println("java JmsFailover URL QUEUE-WITH-MESSAGES OTHER-QUEUE");
            System.exit(2);
        }
        int code = 0;
        try {
            watch(words[0], words[1], words[2]);
        } catch (JMSException | ExecutionException | TimeoutException | IllegalStateException failure) {
            System.out.println("{\"error\": " + JmsLoad.quoted(failure.toString()) + "}");
            code = 1;
        } catch (InterruptedException stopped) {
            code = 1;
        }
        System.out.flush();
        Runtime.getRuntime().halt(code); // a client that fails over does not close while there is no master
    }

    /** When a connection was lost, and when it was there again. */
    static final class Fate extends DefaultTransportListener {
        final CompletableFuture<Long> lost = new CompletableFuture<>();
        final CompletableFuture<Long> resumed = new CompletableFuture<>();

        @Override
        public void transportInterupted() {
            lost.complete(System.nanoTime());
        }

        @Override
        public void transportResumed() {
            if (lost.isDone()) {
                resumed.complete(System.nanoTime());
            }
        }
    }

    static void watch(String url, String queue, String otherQueue)
            throws JMSException, InterruptedException, ExecutionException, TimeoutException {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(url);
        Fate consumerFate = new Fate();
        Fate producerFate = new Fate();
        ActiveMQConnection consuming = connect(factory, consumerFate);
        ActiveMQConnection producing = connect(factory, producerFate);
        Session session = consuming.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        receive(consumer);
        Session sending = producing.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = sending.createProducer(sending.createQueue(otherQueue));
        producer.send(sending.createTextMessage("first master"));
        System.out.println("ready " + System.nanoTime());
        System.out.flush();

        CompletableFuture<Long> answered = CompletableFuture.supplyAsync(() -> {
            try {
                get(producerFate.lost);
                producer.send(sending.createTextMessage("next master")); // waits for it
                return System.nanoTime();
            } catch (JMSException | InterruptedException | ExecutionException | TimeoutException failure) {
                throw new IllegalStateException(failure);
            }
        });
        long connected = get(consumerFate.resumed); // the client forgets what the first master had sent ahead
        receive(consumer);
        long received = System.nanoTime();
        System.out.println(String.format(
                Locale.ROOT, "{\"lost_ns\": %d, \"connected_ns\": %d, \"message_ns\": %d, \"receipt_ns\": %d}",
                get(consumerFate.lost), connected, received, get(answered)));
    }

    private static ActiveMQConnection connect(ActiveMQConnectionFactory factory, Fate fate) throws JMSException {
        ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
        connection.addTransportListener(fate);
        connection.start();
        return connection;
    }

    private static void receive(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(TimeUnit.SECONDS.toMillis(GIVE_UP_SECONDS));
        if (message == null) {
            throw new IllegalStateException("no message came within " + GIVE_UP_SECONDS + " s");
        }
    }

    private static long get(CompletableFuture<Long> time) throws InterruptedException, ExecutionException, TimeoutException {
        return time.get(2 * GIVE_UP_SECONDS, TimeUnit.SECONDS);
    }
}
