package suite;

import java.util.List;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ScheduledMessage;

/** Messages for later: the broker's scheduler must be on. */
public final class Scheduling extends Theme {
    private TextMessage later(Session session, String text, long ms) throws JMSException {
        TextMessage message = session.createTextMessage(text);
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, ms);
        return message;
    }

    @Case public void delay() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        session.createProducer(queue(session)).send(later(session, "late", 1500));
        send(session, queue(session), "early");
        equal("early", nextText(consumer));
        nothing(consumer);
        Message got = next(consumer);
        equal("late", text(got));
    }

    @Case public void properties() throws Exception {
        Session session = auto();
        TextMessage message = later(session, "late", 300);
        message.setIntProperty("n", 3);
        message.setJMSCorrelationID("c");
        message.setJMSReplyTo(queue(session, "reply"));
        session.createProducer(queue(session)).send(message);
        Message got = next(session.createConsumer(queue(session)));
        equal(3, got.getIntProperty("n"));
        equal("c", got.getJMSCorrelationID());
        equal(queue(session, "reply"), got.getJMSReplyTo());
        check(got.getStringProperty("scheduledJobId") != null, "no scheduledJobId");
    }

    /** A relay sends what it received: the copy comes at once, and once. */
    @Case public void forwarded() throws Exception {
        Session session = auto();
        Queue first = queue(session, "1"), second = queue(session, "2");
        TextMessage message = later(session, "late", 200);
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_PERIOD, 300);
        message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 1);
        message.setStringProperty("k", "v");
        session.createProducer(first).send(message);
        MessageConsumer consumer = session.createConsumer(first), next = session.createConsumer(second);
        for (int i = 0; i < 2; i++) {
            Message got = next(consumer);
            equal("v", got.getStringProperty("k"));
            for (Object name : java.util.Collections.list(got.getPropertyNames())) {
                check(!name.toString().startsWith("AMQ_SCHEDULED"), "it has " + name);
            }
            session.createProducer(second).send(got);
            equal("late", nextText(next));
        }
        equal(null, next.receive(600));
    }

    /** Also to a client that looks for duplicates each of them is another message. */
    @Case public void repeatedToAFailoverClient() throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("failover:(" + url() + ")");
        Connection connection = closing(factory.createConnection());
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        TextMessage message = later(session, "again", 200);
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_PERIOD, 200);
        message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 2);
        session.createProducer(queue(session)).send(message);
        equal(List.of("again", "again", "again"), nextTexts(session.createConsumer(queue(session)), 3));
    }

    @Case public void repeated() throws Exception {
        Session session = auto();
        TextMessage message = later(session, "again", 200);
        message.setLongProperty(ScheduledMessage.AMQ_SCHEDULED_PERIOD, 200);
        message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_REPEAT, 2);
        session.createProducer(queue(session)).send(message);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(List.of("again", "again", "again"), nextTexts(consumer, 3));
        equal(null, consumer.receive(600));
    }

    @Case public void inATransaction() throws Exception {
        Session session = transacted(), other = auto();
        MessageProducer producer = session.createProducer(queue(session));
        producer.send(later(session, "rolled back", 200));
        session.rollback();
        producer.send(later(session, "committed", 200));
        session.commit();
        MessageConsumer consumer = other.createConsumer(queue(other));
        equal("committed", nextText(consumer));
        nothing(consumer);
    }

    @Case public void toATopic() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(topic(session));
        session.createProducer(topic(session)).send(later(session, "late", 300));
        equal("late", nextText(consumer));
    }

    @Case public void order() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        producer.send(later(session, "second", 1600));
        producer.send(later(session, "first", 500));
        equal(List.of("first", "second"), nextTexts(session.createConsumer(queue(session)), 2));
    }

    @Case public void asInt() throws Exception {
        Session session = auto();
        TextMessage message = session.createTextMessage("x");
        message.setIntProperty(ScheduledMessage.AMQ_SCHEDULED_DELAY, 300);
        session.createProducer(queue(session)).send(message);
        equal("x", nextText(session.createConsumer(queue(session))));
    }

    /** The scheduler's answer to "browse" would have messages of all users. */
    @Case(differs = "our broker shows scheduled messages to those who manage it")
    public void browsed() throws Exception {
        Session session = auto();
        Message ask = session.createMessage();
        ask.setStringProperty(ScheduledMessage.AMQ_SCHEDULER_ACTION, ScheduledMessage.AMQ_SCHEDULER_ACTION_BROWSE);
        ask.setJMSReplyTo(queue(session));
        Topic to = session.createTopic(ScheduledMessage.AMQ_SCHEDULER_MANAGEMENT_DESTINATION);
        fails(JMSException.class, () -> session.createProducer(to).send(ask));
    }
}
