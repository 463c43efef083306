package suite;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.RedeliveryPolicy;

/** RedeliveryPolicy, and what is dead-lettered when it is exhausted. */
public final class Redelivery extends Theme {
    private ActiveMQConnection connection;

    private ActiveMQConnection policy(int times) throws JMSException {
        connection = connect();
        RedeliveryPolicy policy = connection.getRedeliveryPolicy();
        policy.setMaximumRedeliveries(times);
        policy.setInitialRedeliveryDelay(0);
        policy.setRedeliveryDelay(0);
        return connection;
    }

    private void sendMarked(String... texts) throws JMSException {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (String text : texts) {
            TextMessage message = session.createTextMessage(text);
            message.setStringProperty("mark", id);
            message.setIntProperty("number", 5);
            producer.send(message);
        }
    }

    private MessageConsumer dead() throws JMSException {
        Session session = auto();
        return session.createConsumer(session.createQueue("ActiveMQ.DLQ"), "mark = '" + id + "'");
    }

    /** Roll back each of `times` deliveries; then nothing comes any more. */
    private void rollBackAll(Session session, MessageConsumer consumer, int times) throws JMSException {
        for (int time = 1; time <= times; time++) {
            Message message = next(consumer);
            equal(time, message.getIntProperty("JMSXDeliveryCount"));
            equal(time > 1, message.getJMSRedelivered());
            session.rollback();
        }
        nothing(consumer);
    }

    private Message poisoned(int redeliveries) throws JMSException {
        sendMarked("poison");
        Session session = policy(redeliveries).createSession(true, Session.SESSION_TRANSACTED);
        rollBackAll(session, session.createConsumer(queue(session)), redeliveries + 1);
        return next(dead());
    }

    @Case public void toTheDeadLetterQueue() throws Exception {
        Message got = poisoned(2);
        equal("poison", text(got));
        equal(5, got.getIntProperty("number"));
        check(got.getPropertyNames().hasMoreElements(), "no properties");
    }

    @Case public void causeOfDeath() throws Exception {
        String cause = poisoned(1).getStringProperty("dlqDeliveryFailureCause");
        check(cause != null && cause.contains("RedeliveryPolicy"), "cause: " + cause);
    }

    @Case public void defaultOfSix() throws Exception { equal("poison", text(poisoned(6))); }

    @Case public void noRedelivery() throws Exception { equal("poison", text(poisoned(0))); }

    @Case public void sameMessageIdWhenDead() throws Exception {
        Session session = auto();
        TextMessage message = session.createTextMessage("poison");
        message.setStringProperty("mark", id);
        session.createProducer(queue(session)).send(message);
        Session consuming = policy(0).createSession(true, Session.SESSION_TRANSACTED);
        rollBackAll(consuming, consuming.createConsumer(queue(consuming)), 1);
        Message got = next(dead());
        equal(message.getJMSMessageID(), got.getJMSMessageID());
        equal(consuming.createQueue("ActiveMQ.DLQ"), got.getJMSDestination());
    }

    @Case public void goneFromItsQueue() throws Exception {
        poisoned(0);
        connection.close();
        Session session = auto();
        nothing(session.createConsumer(queue(session)));
    }

    @Case public void othersStay() throws Exception {
        sendMarked("first", "second");
        Session session = policy(1).createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer consumer = session.createConsumer(queue(session));
        List<String> seen = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = next(consumer);
            seen.add(text(message));
            if (text(message).equals("first")) { session.rollback(); } else { session.commit(); }
        }
        equal(List.of("first", "first", "second"), seen);
        equal("first", nextText(dead()));
    }

    @Case public void listenerThatThrows() throws Exception {
        sendMarked("poison");
        Session session = policy(2).createSession(false, AUTO);
        LinkedBlockingQueue<Integer> counts = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { counts.add(m.getIntProperty("JMSXDeliveryCount")); } catch (JMSException problem) { counts.add(-1); }
            throw new java.lang.IllegalStateException("broken listener");
        });
        equal(List.of(1, 2, 3), take(counts, 3));
        String cause = next(dead()).getStringProperty("dlqDeliveryFailureCause");
        check(cause != null && cause.contains("broken listener"), "cause: " + cause);
    }

    @Case public void recoverUntilDead() throws Exception {
        sendMarked("poison");
        Session session = policy(1).createSession(false, CLIENT);
        MessageConsumer consumer = session.createConsumer(queue(session));
        next(consumer);
        session.recover();
        next(consumer);
        session.recover();
        nothing(consumer);
        equal("poison", nextText(dead()));
    }

    @Case public void unlimited() throws Exception {
        sendMarked("x");
        Session session = policy(RedeliveryPolicy.NO_MAXIMUM_REDELIVERIES).createSession(true, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 1; i <= 12; i++) {
            equal(i, next(consumer).getIntProperty("JMSXDeliveryCount"));
            session.rollback();
        }
        next(consumer);
        session.commit();
    }

    @Case public void delayed() throws Exception {
        sendMarked("x");
        ActiveMQConnection connection = policy(3);
        connection.getRedeliveryPolicy().setInitialRedeliveryDelay(600);
        Session session = connection.createSession(true, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        next(consumer);
        session.rollback();
        long began = System.nanoTime();
        next(consumer);
        check(System.nanoTime() - began > 500_000_000L, "it came again without the delay");
        session.commit();
    }

    @Case public void exponential() throws Exception {
        sendMarked("x");
        ActiveMQConnection connection = policy(5);
        RedeliveryPolicy policy = connection.getRedeliveryPolicy();
        policy.setInitialRedeliveryDelay(50);
        policy.setRedeliveryDelay(50);
        policy.setUseExponentialBackOff(true);
        policy.setBackOffMultiplier(3);
        Session session = connection.createSession(true, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        long began = System.nanoTime();
        for (int i = 0; i < 4; i++) { next(consumer); session.rollback(); }
        next(consumer);
        check(System.nanoTime() - began > 600_000_000L, "no back off");
        session.commit();
    }

    @Case public void nonBlocking() throws Exception {
        sendMarked("first", "second");
        ActiveMQConnection connection = connect("jms.nonBlockingRedelivery=true");
        connection.getRedeliveryPolicy().setInitialRedeliveryDelay(500);
        Session session = connection.createSession(true, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("first", nextText(consumer));
        session.rollback();
        equal("second", nextText(consumer));
        session.commit();
        equal("first", nextText(consumer));
        session.commit();
    }

    @Case public void durableSubscriber() throws Exception {
        ActiveMQConnection connection = open();
        connection.setClientID(id);
        connection.getRedeliveryPolicy().setMaximumRedeliveries(1);
        connection.getRedeliveryPolicy().setInitialRedeliveryDelay(0);
        connection.start();
        Session session = connection.createSession(true, AUTO);
        MessageConsumer consumer = session.createDurableSubscriber(topic(session), "s");
        Session sender = auto();
        TextMessage message = sender.createTextMessage("poison");
        message.setStringProperty("mark", id);
        sender.createProducer(topic(sender)).send(message);
        rollBackAll(session, consumer, 2);
        equal("poison", nextText(dead()));
        consumer.close();
        session.unsubscribe("s");
    }

    @Case public void perDestination() throws Exception {
        sendMarked("poison");
        ActiveMQConnection connection = connect();
        RedeliveryPolicy none = new RedeliveryPolicy();
        none.setMaximumRedeliveries(0);
        connection.getRedeliveryPolicyMap().put(new org.apache.activemq.command.ActiveMQQueue(name()), none);
        Session session = connection.createSession(true, AUTO);
        rollBackAll(session, session.createConsumer(queue(session)), 1);
        equal("poison", nextText(dead()));
    }

    /** On one connection a message that comes again equals the message that came first. */
    private void equalsItself(int mode) throws Exception {
        sendMarked("x");
        Session session = connect().createSession(mode == Session.SESSION_TRANSACTED, mode);
        MessageConsumer consumer = session.createConsumer(queue(session));
        Message first = next(consumer);
        if (session.getTransacted()) { session.rollback(); } else { session.recover(); }
        Message again = next(consumer);
        check(again.getJMSRedelivered(), "it is not redelivered");
        equal(first.getJMSMessageID(), again.getJMSMessageID());
        equal(first, again);
        if (session.getTransacted()) { session.rollback(); }
        consumer.close();
        equal(first, next(session.createConsumer(queue(session))));
    }

    @Case public void equalsItselfInATransaction() throws Exception { equalsItself(Session.SESSION_TRANSACTED); }

    @Case public void equalsItselfWithClientAck() throws Exception { equalsItself(CLIENT); }

    @Case public void equalsItselfWithIndividualAck() throws Exception { equalsItself(INDIVIDUAL); }

    @Case public void equalsItselfOnceItsSessionHasEnded() throws Exception {
        sendMarked("x");
        Connection connection = connect();
        Session session = connection.createSession(false, CLIENT);
        Message first = next(session.createConsumer(queue(session)));
        session.close();
        session = connection.createSession(false, AUTO);
        equal(first, next(session.createConsumer(queue(session))));
    }
}
