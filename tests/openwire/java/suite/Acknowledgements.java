package suite;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;

/** The acknowledgement modes: what is acknowledged is gone, the rest comes again, in order. */
public final class Acknowledgements extends Theme {
    /** Fails unless these texts are left in the queue. */
    private void left(List<String> expected) throws JMSException {
        Session session = auto();
        comes(expected, session.createConsumer(queue(session)));
    }

    private Session filled(int mode, int messages, String... options) throws JMSException {
        Session session = session(mode, options);
        Session sender = auto();
        count(sender, queue(sender), messages);
        return session;
    }

    private void close(Session session) throws JMSException {
        ((org.apache.activemq.ActiveMQSession) session).getConnection().close();
    }

    @Case public void auto1() throws Exception {
        Session session = filled(AUTO, 3);
        equal(numbers(0, 2), nextTexts(session.createConsumer(queue(session)), 2));
        close(session);
        left(List.of("2"));
    }

    @Case public void autoListener() throws Exception {
        Session session = filled(AUTO, 5);
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { came.add(text(m)); } catch (JMSException problem) { came.add(problem.toString()); }
        });
        equal(numbers(0, 5), take(came, 5));
        close(session);
        left(List.of());
    }

    @Case public void autoListenerThrows() throws Exception {
        Session session = filled(AUTO, 1);
        LinkedBlockingQueue<Boolean> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            boolean again;
            try { again = m.getJMSRedelivered(); } catch (JMSException problem) { throw new RuntimeException(problem); }
            came.add(again);
            if (!again) { throw new RuntimeException("not yet"); }
        });
        equal(List.of(false, true), take(came, 2));
        close(session);
        left(List.of());
    }

    @Case public void clientAcknowledgesAllBefore() throws Exception {
        Session session = filled(CLIENT, 6);
        MessageConsumer consumer = session.createConsumer(queue(session));
        nextTexts(consumer, 3);
        next(consumer).acknowledge();
        nextText(consumer);
        close(session);
        left(List.of("4", "5"));
    }

    @Case public void clientAcknowledgesTheWholeSession() throws Exception {
        Session session = session(CLIENT);
        count(session, queue(session, "a"), 1);
        count(session, queue(session, "b"), 1);
        MessageConsumer a = session.createConsumer(queue(session, "a"));
        MessageConsumer b = session.createConsumer(queue(session, "b"));
        next(a);
        next(b).acknowledge();
        close(session);
        Session other = auto();
        nothing(other.createConsumer(queue(other, "a")));
        nothing(other.createConsumer(queue(other, "b")));
    }

    @Case public void clientUnacknowledgedComesAgain() throws Exception {
        Session session = filled(CLIENT, 5);
        nextTexts(session.createConsumer(queue(session)), 2);
        close(session);
        Session other = auto();
        MessageConsumer consumer = other.createConsumer(queue(other));
        List<String> texts = new ArrayList<>();
        List<Boolean> again = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            Message message = next(consumer);
            texts.add(text(message));
            again.add(message.getJMSRedelivered());
        }
        equal(numbers(0, 5), texts);
        equal(List.of(true, true, false, false, false), again, "redelivered");
    }

    @Case public void clientConsumerClosed() throws Exception {
        Session session = filled(CLIENT, 3);
        MessageConsumer first = session.createConsumer(queue(session));
        Message message = next(first);
        first.close();
        fails(javax.jms.IllegalStateException.class, message::acknowledge);
        left(numbers(0, 3));
    }

    @Case public void clientMoreThanThePrefetch() throws Exception {
        Session session = filled(CLIENT, 60, "jms.prefetchPolicy.queuePrefetch=10");
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(numbers(0, 59), nextTexts(consumer, 59));
        next(consumer).acknowledge();
        close(session);
        left(List.of());
    }

    @Case public void clientAfterCloseOfTheSession() throws Exception {
        Session session = filled(CLIENT, 1);
        Message message = next(session.createConsumer(queue(session)));
        session.close();
        fails(javax.jms.IllegalStateException.class, message::acknowledge);
        left(List.of("0"));
    }

    @Case public void individualOutOfOrder() throws Exception {
        Session session = filled(INDIVIDUAL, 6);
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 5; i++) { messages.add(next(consumer)); }
        messages.get(3).acknowledge();
        messages.get(1).acknowledge();
        close(session);
        left(List.of("0", "2", "4", "5"));
    }

    @Case public void individualMoreThanThePrefetch() throws Exception {
        Session session = filled(INDIVIDUAL, 40, "jms.prefetchPolicy.queuePrefetch=5");
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 40; i++) { messages.add(next(consumer)); }
        for (int i = 39; i > 0; i -= 2) { messages.get(i).acknowledge(); }
        close(session);
        left(numbers(0, 40).stream().filter(n -> Integer.parseInt(n) % 2 == 0).toList());
    }

    @Case public void individualListener() throws Exception {
        Session session = filled(INDIVIDUAL, 4);
        LinkedBlockingQueue<Message> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(came::add);
        List<Message> messages = take(came, 4);
        messages.get(2).acknowledge();
        close(session);
        left(List.of("0", "1", "3"));
    }

    @Case public void individualOnATopic() throws Exception {
        Session session = session(INDIVIDUAL);
        MessageConsumer consumer = session.createConsumer(topic(session));
        count(session, topic(session), 3);
        next(consumer);
        next(consumer).acknowledge();
        equal("2", nextText(consumer));
    }

    @Case public void dupsOk() throws Exception {
        Session session = filled(DUPS_OK, 20);
        equal(numbers(0, 20), nextTexts(session.createConsumer(queue(session)), 20));
        session.close();
        left(List.of());
    }

    @Case public void dupsOkOnATopic() throws Exception {
        Session session = session(DUPS_OK, "jms.prefetchPolicy.topicPrefetch=10");
        MessageConsumer consumer = session.createConsumer(topic(session));
        count(session, topic(session), 100);
        equal(numbers(0, 100), nextTexts(consumer, 100));
    }

    @Case public void optimizeAcknowledge() throws Exception {
        Session session = filled(AUTO, 120, "jms.optimizeAcknowledge=true", "jms.prefetchPolicy.queuePrefetch=20");
        equal(numbers(0, 120), nextTexts(session.createConsumer(queue(session)), 120));
        session.close();
        left(List.of());
    }

    @Case public void optimizeAcknowledgeInTime() throws Exception {
        Session session = filled(AUTO, 3, "jms.optimizeAcknowledge=true", "jms.optimizeAcknowledgeTimeOut=200",
            "jms.optimizedAckScheduledAckInterval=200");
        nextTexts(session.createConsumer(queue(session)), 3);
        Session other = auto();
        eventually(() -> browse(other, queue(other)).isEmpty(), "still there");
    }

    @Case public void recoverClient() throws Exception {
        Session session = filled(CLIENT, 4);
        MessageConsumer consumer = session.createConsumer(queue(session));
        next(consumer).acknowledge();
        nextTexts(consumer, 2);
        session.recover();
        Message again = next(consumer);
        equal("1", text(again));
        equal(true, again.getJMSRedelivered());
        equal(2, again.getIntProperty("JMSXDeliveryCount"));
        equal("2", nextText(consumer));
        Message last = next(consumer);
        equal("3", text(last));
        equal(false, last.getJMSRedelivered());
        last.acknowledge();
        close(session);
        left(List.of());
    }

    @Case public void recoverTwice() throws Exception {
        Session session = filled(CLIENT, 1, "jms.redeliveryPolicy.initialRedeliveryDelay=0",
            "jms.redeliveryPolicy.redeliveryDelay=0");
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 1; i <= 4; i++) {
            Message message = next(consumer);
            equal(i, message.getIntProperty("JMSXDeliveryCount"));
            session.recover();
        }
    }

    @Case public void recoverIndividual() throws Exception {
        Session session = filled(INDIVIDUAL, 3);
        MessageConsumer consumer = session.createConsumer(queue(session));
        next(consumer);
        next(consumer).acknowledge();
        next(consumer);
        session.recover();
        equal(List.of("0", "2"), nextTexts(consumer, 2));
        nothing(consumer);
    }

    @Case public void recoverInAListener() throws Exception {
        Session session = filled(AUTO, 2);
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try {
                came.add(text(m) + m.getJMSRedelivered());
                if (!m.getJMSRedelivered()) { session.recover(); }
            } catch (JMSException problem) { came.add(problem.toString()); }
        });
        List<String> all = take(came, 4);
        check(all.containsAll(List.of("0false", "0true", "1false", "1true")), "came: " + all);
        close(session);
        left(List.of());
    }

    @Case public void recoverOfATransaction() throws Exception {
        Session session = transacted();
        fails(javax.jms.IllegalStateException.class, session::recover);
    }

    @Case public void prefetchedIsNotRedelivered() throws Exception {
        Session session = filled(CLIENT, 10);
        session.createConsumer(queue(session));
        Session other = auto();
        close(session);
        MessageConsumer consumer = other.createConsumer(queue(other));
        for (int i = 0; i < 10; i++) {
            Message message = next(consumer);
            equal(String.valueOf(i), text(message));
            equal(false, message.getJMSRedelivered(), "redelivered");
        }
    }

    @Case public void countGrowsOverConsumers() throws Exception {
        Session sender = auto();
        count(sender, queue(sender), 1);
        for (int i = 1; i <= 3; i++) {
            Session session = session(CLIENT);
            Message message = next(session.createConsumer(queue(session)));
            equal(i, message.getIntProperty("JMSXDeliveryCount"));
            close(session);
        }
    }

    @Case public void ackModeOfTheConnection() throws Exception {
        ActiveMQConnection connection = connect();
        equal(INDIVIDUAL, connection.createSession(false, INDIVIDUAL).getAcknowledgeMode());
        equal(Session.SESSION_TRANSACTED, connection.createSession(true, AUTO).getAcknowledgeMode());
    }
}
