package suite;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.jms.*;
import org.apache.activemq.ActiveMQMessageProducer;
import org.apache.activemq.AsyncCallback;

/** The ways to send. */
public final class Producers extends Theme {
    private void twoHundred(String... options) throws JMSException {
        Session session = session(AUTO, options);
        count(session, queue(session), 200);
        Session other = auto();
        equal(numbers(0, 200), nextTexts(other.createConsumer(queue(other)), 200));
    }

    @Case public void async() throws Exception { twoHundred("jms.useAsyncSend=true"); }
    @Case public void alwaysSync() throws Exception { twoHundred("jms.alwaysSyncSend=true"); }
    @Case public void window() throws Exception { twoHundred("jms.useAsyncSend=true", "jms.producerWindowSize=5000"); }
    @Case public void smallWindow() throws Exception { twoHundred("jms.useAsyncSend=true", "jms.producerWindowSize=1"); }
    @Case public void noCopy() throws Exception { twoHundred("jms.copyMessageOnSend=false"); }
    @Case public void sendTimeout() throws Exception { twoHundred("jms.sendTimeout=5000"); }
    @Case public void nonBlockingAcks() throws Exception { twoHundred("jms.sendAcksAsync=false"); }

    @Case public void windowOfLargeMessages() throws Exception {
        Session session = session(AUTO, "jms.useAsyncSend=true", "jms.producerWindowSize=100000");
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 20; i++) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(new byte[60_000]);
            message.setStringProperty("text", "x".repeat(2000));
            producer.send(message);
        }
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 20; i++) { equal(60_000L, next(consumer, BytesMessage.class).getBodyLength()); }
    }

    @Case public void windowOfTheDestination() throws Exception {
        Session session = session(AUTO, "jms.useAsyncSend=true");
        count(session, session.createQueue(name() + "?producer.windowSize=3000"), 100);
        equal(numbers(0, 100), nextTexts(session.createConsumer(queue(session)), 100));
    }

    @Case public void windowNonPersistent() throws Exception {
        Session session = session(AUTO, "jms.producerWindowSize=4000");
        sendQuickly(session, queue(session), 100);
        equal(numbers(0, 100), nextTexts(session.createConsumer(queue(session)), 100));
    }

    @Case public void windowInATransaction() throws Exception {
        Session session = transacted("jms.producerWindowSize=4000");
        count(session, queue(session), 100);
        session.commit();
        equal(numbers(0, 100), nextTexts(session.createConsumer(queue(session)), 100));
        session.commit();
    }

    @Case public void anonymous() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(null);
        producer.send(queue(session, "a"), session.createTextMessage("1"));
        producer.send(queue(session, "b"), session.createTextMessage("2"), DeliveryMode.NON_PERSISTENT, 2, 0);
        equal("1", nextText(session.createConsumer(queue(session, "a"))));
        equal("2", nextText(session.createConsumer(queue(session, "b"))));
        equal(null, producer.getDestination());
    }

    @Case public void anonymousNeedsADestination() throws Exception {
        Session session = auto();
        fails(UnsupportedOperationException.class, () -> session.createProducer(null).send(session.createMessage()));
        fails(UnsupportedOperationException.class,
            () -> session.createProducer(queue(session)).send(queue(session, "other"), session.createMessage()));
    }

    @Case public void callback() throws Exception {
        Session session = auto();
        ActiveMQMessageProducer producer = (ActiveMQMessageProducer) session.createProducer(queue(session));
        CountDownLatch confirmed = new CountDownLatch(30);
        LinkedBlockingQueue<String> problems = new LinkedBlockingQueue<>();
        for (int i = 0; i < 30; i++) {
            producer.send(session.createTextMessage(String.valueOf(i)), new AsyncCallback() {
                @Override public void onSuccess() { confirmed.countDown(); }
                @Override public void onException(JMSException problem) { problems.add(problem.toString()); }
            });
        }
        check(confirmed.await(SOON_MS, TimeUnit.MILLISECONDS), confirmed.getCount() + " not confirmed, " + problems);
        equal(numbers(0, 30), nextTexts(session.createConsumer(queue(session)), 30));
    }

    @Case public void settings() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        equal(DeliveryMode.PERSISTENT, producer.getDeliveryMode());
        equal(4, producer.getPriority());
        equal(0L, producer.getTimeToLive());
        equal(queue(session), producer.getDestination());
        fails(JMSException.class, () -> producer.setPriority(10));
        fails(javax.jms.IllegalStateException.class, () -> producer.setDeliveryMode(7));
    }

    @Case(differs = "ActiveMQ keeps persistent and other messages of a queue apart, and loses their order")
    public void persistenceMixed() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 20; i++) {
            producer.send(session.createTextMessage(String.valueOf(i)), 1 + i % 2, 4, 0);
        }
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 20; i++) {
            Message message = next(consumer);
            equal(String.valueOf(i), text(message));
            equal(1 + i % 2, message.getJMSDeliveryMode());
        }
    }

    @Case public void severalThreads() throws Exception {
        LinkedBlockingQueue<String> problems = new LinkedBlockingQueue<>();
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            Session session = auto();
            int first = t * 50;
            threads[t] = new Thread(() -> {
                try { send(session, queue(session), numbers(first, first + 50).toArray(new String[0])); }
                catch (Exception problem) { problems.add(problem.toString()); }
            });
            threads[t].start();
        }
        for (Thread thread : threads) { thread.join(); }
        equal("[]", problems.toString());
        Session session = auto();
        List<String> came = nextTexts(session.createConsumer(queue(session)), 200);
        check(came.containsAll(numbers(0, 200)), "came: " + came);
    }

    @Case public void sharedConnection() throws Exception {
        org.apache.activemq.ActiveMQConnection connection = connect();
        Session a = connection.createSession(false, AUTO), b = connection.createSession(false, AUTO);
        MessageProducer pa = a.createProducer(queue(a)), pb = b.createProducer(queue(b));
        for (int i = 0; i < 20; i++) {
            (i % 2 == 0 ? pa : pb).send(a.createTextMessage(String.valueOf(i)));
        }
        equal(numbers(0, 20), nextTexts(a.createConsumer(queue(a)), 20));
    }
}
