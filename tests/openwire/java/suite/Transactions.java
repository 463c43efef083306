package suite;

import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;

/** Local transactions. */
public final class Transactions extends Theme {
    private static final String NO_DELAY = "jms.redeliveryPolicy.initialRedeliveryDelay=0";

    @Case public void sentWhenCommitted() throws Exception {
        Session session = transacted(), other = auto();
        MessageConsumer consumer = other.createConsumer(queue(other));
        count(session, queue(session), 3);
        nothing(consumer);
        session.commit();
        equal(numbers(0, 3), nextTexts(consumer, 3));
    }

    @Case public void rolledBackSends() throws Exception {
        Session session = transacted(), other = auto();
        count(session, queue(session), 3);
        session.rollback();
        send(session, queue(session), "after");
        session.commit();
        MessageConsumer consumer = other.createConsumer(queue(other));
        equal("after", nextText(consumer));
        nothing(consumer);
    }

    @Case public void receivedWhenCommitted() throws Exception {
        Session session = transacted(), other = auto();
        count(other, queue(other), 3);
        equal(numbers(0, 2), nextTexts(session.createConsumer(queue(session)), 2));
        session.commit();
        session.close();
        comes(List.of("2"), other.createConsumer(queue(other)));
    }

    @Case public void rolledBackReceives() throws Exception {
        Session session = transacted(NO_DELAY), other = auto();
        count(other, queue(other), 3);
        MessageConsumer consumer = session.createConsumer(queue(session));
        nextTexts(consumer, 2);
        session.rollback();
        for (int i = 0; i < 3; i++) {
            Message message = next(consumer);
            equal(String.valueOf(i), text(message));
            equal(i < 2, message.getJMSRedelivered());
            equal(i < 2 ? 2 : 1, message.getIntProperty("JMSXDeliveryCount"));
        }
        session.commit();
        nothing(consumer);
    }

    @Case public void consumeAndProduce() throws Exception {
        Session session = transacted(NO_DELAY), other = auto();
        count(other, queue(other), 2);
        MessageConsumer in = session.createConsumer(queue(session));
        MessageConsumer out = other.createConsumer(queue(other, "out"));
        send(session, queue(session, "out"), nextText(in));
        session.rollback();
        nothing(out);
        send(session, queue(session, "out"), nextText(in));
        session.commit();
        equal("0", nextText(out));
        nothing(out);
    }

    @Case public void sessionCloseRollsBack() throws Exception {
        Session session = transacted(), other = auto();
        count(other, queue(other), 2);
        equal("0", nextText(session.createConsumer(queue(session))));
        send(session, queue(session), "lost");
        session.close();
        MessageConsumer consumer = other.createConsumer(queue(other));
        Message first = next(consumer);
        equal("0", text(first));
        equal(true, first.getJMSRedelivered());
        equal(2, first.getIntProperty("JMSXDeliveryCount"));
        Message second = next(consumer);
        equal("1", text(second));
        equal(false, second.getJMSRedelivered());
        nothing(consumer);
    }

    @Case public void connectionCloseRollsBack() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(true, AUTO), other = auto();
        count(other, queue(other), 1);
        next(session.createConsumer(queue(session)));
        send(session, queue(session), "lost");
        connection.close();
        MessageConsumer consumer = other.createConsumer(queue(other));
        equal("0", nextText(consumer));
        nothing(consumer);
    }

    @Case public void consumerCloseKeepsTheTransaction() throws Exception {
        Session session = transacted(), other = auto();
        count(other, queue(other), 3);
        MessageConsumer consumer = session.createConsumer(queue(session));
        nextText(consumer);
        consumer.close();
        session.commit();
        comes(List.of("1", "2"), other.createConsumer(queue(other)));
    }

    @Case public void rollbackAfterConsumerClose() throws Exception {
        Session session = transacted(), other = auto();
        count(other, queue(other), 2);
        MessageConsumer consumer = session.createConsumer(queue(session));
        nextText(consumer);
        consumer.close();
        session.rollback();
        comes(List.of("0", "1"), other.createConsumer(queue(other)));
    }

    @Case public void severalDestinations() throws Exception {
        Session session = transacted(), other = auto();
        MessageConsumer a = other.createConsumer(queue(other, "a")), t = other.createConsumer(topic(other, "t"));
        send(session, queue(session, "a"), "to a");
        send(session, topic(session, "t"), "to t");
        nothing(t);
        session.commit();
        equal("to a", nextText(a));
        equal("to t", nextText(t));
    }

    @Case public void severalConsumers() throws Exception {
        Session session = transacted(NO_DELAY), other = auto();
        count(other, queue(other, "a"), 1);
        count(other, queue(other, "b"), 1);
        MessageConsumer a = session.createConsumer(queue(session, "a"));
        MessageConsumer b = session.createConsumer(queue(session, "b"));
        nextText(a);
        nextText(b);
        session.rollback();
        nextText(a);
        nextText(b);
        session.commit();
        nothing(a);
        nothing(b);
    }

    @Case public void threeThousandUnacknowledged() throws Exception {
        Session session = transacted(), sender = transacted(), other = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        count(sender, queue(sender), 3000);
        sender.commit();
        equal(numbers(0, 3000), nextTexts(consumer, 3000));
        session.commit();
        session.close();
        nothing(other.createConsumer(queue(other)));
    }

    @Case public void twoThousandRolledBack() throws Exception {
        Session session = transacted(NO_DELAY), sender = transacted();
        MessageConsumer consumer = session.createConsumer(queue(session));
        count(sender, queue(sender), 2000);
        sender.commit();
        nextTexts(consumer, 1500);
        session.rollback();
        equal(numbers(0, 2000), nextTexts(consumer, 2000));
        session.commit();
    }

    @Case public void manySends() throws Exception {
        Session session = transacted(), other = auto();
        count(session, queue(session), 1000);
        session.commit();
        equal(numbers(0, 1000), nextTexts(other.createConsumer(queue(other)), 1000));
    }

    @Case public void manyCommits() throws Exception {
        Session session = transacted(), other = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 100; i++) {
            producer.send(session.createTextMessage(String.valueOf(i)));
            if (i % 3 == 2) { session.rollback(); } else { session.commit(); }
        }
        equal(67, nextTexts(other.createConsumer(queue(other)), 67).size());
    }

    @Case public void emptyOnes() throws Exception {
        Session session = transacted();
        session.commit();
        session.rollback();
        session.commit();
        send(session, queue(session), "x");
        session.commit();
        equal("x", nextText(session.createConsumer(queue(session))));
    }

    @Case public void notTransacted() throws Exception {
        Session session = auto();
        equal(false, session.getTransacted());
        fails(javax.jms.IllegalStateException.class, session::commit);
        fails(javax.jms.IllegalStateException.class, session::rollback);
    }

    @Case public void sessionsAreSeparate() throws Exception {
        ActiveMQConnection connection = connect();
        Session a = connection.createSession(true, AUTO), b = connection.createSession(true, AUTO);
        Session other = auto();
        send(a, queue(a), "a");
        send(b, queue(b), "b");
        a.rollback();
        b.commit();
        comes(List.of("b"), other.createConsumer(queue(other)));
    }

    @Case public void commitInAListener() throws Exception {
        Session session = transacted(), other = auto();
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { came.add(text(m)); session.commit(); } catch (JMSException problem) { came.add(problem.toString()); }
        });
        count(other, queue(other), 5);
        equal(numbers(0, 5), take(came, 5));
        eventually(() -> browse(other, queue(other)).isEmpty(), "not committed");
    }

    @Case public void rollbackInAListener() throws Exception {
        Session session = transacted(NO_DELAY), other = auto();
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try {
                came.add(text(m) + m.getJMSRedelivered());
                if (m.getJMSRedelivered()) { session.commit(); } else { session.rollback(); }
            } catch (JMSException problem) { came.add(problem.toString()); }
        });
        send(other, queue(other), "x");
        equal(List.of("xfalse", "xtrue"), take(came, 2));
    }

    @Case public void acknowledgeMeansNothing() throws Exception {
        Session session = transacted(), other = auto();
        count(other, queue(other), 1);
        next(session.createConsumer(queue(session))).acknowledge();
        session.close();
        comes(List.of("0"), other.createConsumer(queue(other)));
    }

    @Case public void durableSubscriber() throws Exception {
        Session session = connectAs(id).createSession(true, AUTO);
        MessageConsumer consumer = session.createDurableSubscriber(topic(session), "s");
        Session other = auto();
        count(other, topic(other), 3);
        nextTexts(consumer, 2);
        session.rollback();
        equal(numbers(0, 3), nextTexts(consumer, 3));
        session.commit();
        consumer.close();
        consumer = session.createDurableSubscriber(topic(session), "s");
        nothing(consumer);
        consumer.close();
        session.unsubscribe("s");
    }

    @Case public void nonPersistent() throws Exception {
        Session session = transacted(), other = auto();
        sendQuickly(session, queue(session), 10);
        MessageConsumer consumer = other.createConsumer(queue(other));
        nothing(consumer);
        session.commit();
        equal(numbers(0, 10), nextTexts(consumer, 10));
    }

    @Case public void toAnInvalidDestination() throws Exception {
        Session session = transacted();
        fails(UnsupportedOperationException.class, () -> session.createProducer(null).send(session.createMessage()));
        send(session, queue(session), "x");
        session.commit();
        equal("x", nextText(session.createConsumer(queue(session))));
    }
}
