package suite;

import java.util.List;
import javax.jms.*;

/** Messages that live for a time. */
public final class Expiry extends Theme {
    private void sendFor(Session session, Destination to, String text, long ms) throws JMSException {
        TextMessage message = session.createTextMessage(text);
        message.setStringProperty("mark", id);
        session.createProducer(to).send(message, DeliveryMode.PERSISTENT, 4, ms);
    }

    @Case public void expired() throws Exception {
        Session session = auto();
        sendFor(session, queue(session), "short", 100);
        sendFor(session, queue(session), "long", 60_000);
        Thread.sleep(400);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("long", nextText(consumer));
        nothing(consumer);
    }

    @Case public void toTheDeadLetterQueue() throws Exception {
        Session session = auto();
        sendFor(session, queue(session), "short", 100);
        Thread.sleep(300);
        nothing(session.createConsumer(queue(session)));
        MessageConsumer dead = session.createConsumer(session.createQueue("ActiveMQ.DLQ"), "mark = '" + id + "'");
        equal("short", nextText(dead));
    }

    @Case public void inTheClient() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        sendFor(session, queue(session), "short", 300);
        sendFor(session, queue(session), "long", 60_000);
        Thread.sleep(800);
        equal("long", nextText(consumer));
        nothing(consumer);
        MessageConsumer dead = session.createConsumer(session.createQueue("ActiveMQ.DLQ"), "mark = '" + id + "'");
        equal("short", nextText(dead));
    }

    @Case public void inTime() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        sendFor(session, queue(session), "x", 30_000);
        equal("x", nextText(consumer));
    }

    @Case public void notSeenByABrowser() throws Exception {
        Session session = auto();
        sendFor(session, queue(session), "short", 100);
        sendFor(session, queue(session), "long", 60_000);
        Thread.sleep(400);
        equal(List.of("long"), browse(session, queue(session)));
    }

    @Case public void onATopic() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(topic(session));
        sendFor(session, topic(session), "short", 200);
        sendFor(session, topic(session), "long", 60_000);
        Thread.sleep(600);
        comes(List.of("long"), consumer);
    }

    @Case public void inADurableSubscription() throws Exception {
        Session session = connectAs(id).createSession(false, AUTO);
        session.createDurableSubscriber(topic(session), "s").close();
        sendFor(session, topic(session), "short", 100);
        sendFor(session, topic(session), "long", 60_000);
        Thread.sleep(400);
        comes(List.of("long"), session.createDurableSubscriber(topic(session), "s"));
    }

    @Case public void manyExpiredBefore() throws Exception {
        Session session = transacted();
        MessageProducer producer = session.createProducer(queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.setTimeToLive(200);
        for (int i = 0; i < 100; i++) { producer.send(session.createTextMessage("short " + i)); }
        producer.setTimeToLive(0);
        producer.send(session.createTextMessage("last"));
        session.commit();
        Thread.sleep(600);
        Session other = auto();
        equal("last", nextText(other.createConsumer(queue(other))));
    }

    @Case public void pulled() throws Exception {
        Session session = session(AUTO, "jms.prefetchPolicy.all=0");
        sendFor(session, queue(session), "short", 100);
        Thread.sleep(300);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(null, consumer.receiveNoWait());
        sendFor(session, queue(session), "long", 60_000);
        equal("long", nextText(consumer));
    }
}
