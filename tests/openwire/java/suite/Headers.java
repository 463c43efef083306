package suite;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import javax.jms.*;
import org.apache.activemq.command.ActiveMQMessage;

/** The JMS header fields. */
public final class Headers extends Theme {
    private Session session;
    private MessageProducer producer;
    private MessageConsumer consumer;

    private Message start() throws JMSException {
        session = auto();
        producer = session.createProducer(queue(session));
        consumer = session.createConsumer(queue(session));
        return session.createTextMessage("x");
    }

    private Message through(Message message) throws JMSException {
        producer.send(message);
        return next(consumer);
    }

    @Case public void correlationId() throws Exception {
        Message message = start();
        message.setJMSCorrelationID("ä/1 😀");
        equal("ä/1 😀", through(message).getJMSCorrelationID());
    }

    @Case public void correlationIdAsBytes() throws Exception {
        Message message = start();
        message.setJMSCorrelationIDAsBytes("bytes".getBytes("UTF-8"));
        Message got = through(message);
        equal("bytes".getBytes("UTF-8"), got.getJMSCorrelationIDAsBytes());
        equal("bytes", got.getJMSCorrelationID());
    }

    @Case public void noCorrelationId() throws Exception {
        equal(null, through(start()).getJMSCorrelationID());
    }

    @Case public void replyToQueue() throws Exception {
        Message message = start();
        message.setJMSReplyTo(queue(session, "reply"));
        equal(queue(session, "reply"), through(message).getJMSReplyTo());
    }

    @Case public void replyToTopic() throws Exception {
        Message message = start();
        message.setJMSReplyTo(topic(session, "reply"));
        Destination got = through(message).getJMSReplyTo();
        check(got instanceof Topic && !(got instanceof Queue && !(got instanceof Topic)), "no topic: " + got);
        equal(topic(session, "reply"), got);
    }

    @Case public void type() throws Exception {
        Message message = start();
        message.setJMSType("order");
        equal("order", through(message).getJMSType());
    }

    @Case public void noType() throws Exception { equal(null, through(start()).getJMSType()); }

    @Case public void defaults() throws Exception {
        Message got = through(start());
        equal(DeliveryMode.PERSISTENT, got.getJMSDeliveryMode());
        equal(4, got.getJMSPriority());
        equal(0L, got.getJMSExpiration());
        equal(false, got.getJMSRedelivered());
        equal(queue(session), got.getJMSDestination());
        equal(null, got.getJMSReplyTo());
    }

    @Case public void priorityOfTheSender() throws Exception {
        Message message = start();
        message.setJMSPriority(1);
        producer.setPriority(9);
        equal(9, through(message).getJMSPriority());
        equal(9, message.getJMSPriority());
    }

    @Case public void nonPersistent() throws Exception {
        Message message = start();
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        equal(DeliveryMode.NON_PERSISTENT, through(message).getJMSDeliveryMode());
    }

    @Case public void expiration() throws Exception {
        Message message = start();
        long before = System.currentTimeMillis();
        producer.setTimeToLive(60_000);
        Message got = through(message);
        equal(message.getJMSExpiration(), got.getJMSExpiration());
        check(Math.abs(got.getJMSExpiration() - before - 60_000) < 5_000, "expiration " + got.getJMSExpiration());
    }

    @Case public void timestamp() throws Exception {
        long before = System.currentTimeMillis();
        Message message = start();
        Message got = through(message);
        equal(message.getJMSTimestamp(), got.getJMSTimestamp());
        check(got.getJMSTimestamp() >= before && got.getJMSTimestamp() <= System.currentTimeMillis(), "not now");
    }

    @Case public void noTimestamp() throws Exception {
        Message message = start();
        producer.setDisableMessageTimestamp(true);
        equal(0L, through(message).getJMSTimestamp());
    }

    @Case public void messageIdOfTheSender() throws Exception {
        Message message = start();
        Message got = through(message);
        check(got.getJMSMessageID().startsWith("ID:"), "id " + got.getJMSMessageID());
        equal(message.getJMSMessageID(), got.getJMSMessageID());
        equal(message, got, "message");
    }

    @Case public void messageIdsAreUnique() throws Exception {
        Message message = start();
        Set<String> ids = new HashSet<>();
        for (int i = 0; i < 50; i++) {
            ids.add(through(message).getJMSMessageID());
        }
        equal(50, ids.size());
    }

    @Case public void forwardedGetsANewId() throws Exception {
        Message got = through(start());
        String first = got.getJMSMessageID();
        producer.send(got);
        check(!next(consumer).getJMSMessageID().equals(first), "the same id again");
    }

    @Case public void allOfOneSend() throws Exception {
        Message message = start();
        producer.send(message, DeliveryMode.NON_PERSISTENT, 7, 30_000);
        Message got = next(consumer);
        equal(7, got.getJMSPriority());
        equal(DeliveryMode.NON_PERSISTENT, got.getJMSDeliveryMode());
        check(got.getJMSExpiration() > System.currentTimeMillis(), "expiration " + got.getJMSExpiration());
    }

    @Case public void destinationOfATopic() throws Exception {
        Message message = start();
        MessageConsumer subscriber = session.createConsumer(topic(session));
        session.createProducer(topic(session)).send(message);
        equal(topic(session), next(subscriber).getJMSDestination());
    }

    @Case(differs = "our broker sends messages out as they came")
    public void timesInTheBroker() throws Exception {
        ActiveMQMessage got = (ActiveMQMessage) through(start());
        equal(List.of(0L, 0L), List.of(got.getBrokerInTime(), got.getBrokerOutTime()));
    }
}
