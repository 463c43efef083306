package suite;

import java.util.List;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.DestinationDoesNotExistException;

/** Temporary destinations, requests and replies. */
public final class Temporaries extends Theme {
    private void answer(MessageConsumer consumer, Session session) throws JMSException {
        MessageProducer producer = session.createProducer(null);
        consumer.setMessageListener(request -> {
            try {
                TextMessage reply = session.createTextMessage("re: " + text(request));
                reply.setJMSCorrelationID(request.getJMSMessageID());
                producer.send(request.getJMSReplyTo(), reply);
            } catch (JMSException problem) {
                throw new RuntimeException(problem);
            }
        });
    }

    @Case public void queue() throws Exception {
        Session session = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(queue);
        send(session, queue, "x");
        Message got = next(consumer);
        equal("x", text(got));
        equal(queue, got.getJMSDestination());
    }

    @Case public void topic() throws Exception {
        Session session = auto();
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer a = session.createConsumer(topic), b = session.createConsumer(topic);
        send(session, topic, "x");
        equal("x", nextText(a));
        equal("x", nextText(b));
    }

    @Case public void namesDiffer() throws Exception {
        Session session = auto(), other = auto();
        check(!session.createTemporaryQueue().getQueueName().equals(session.createTemporaryQueue().getQueueName()), "a");
        check(!session.createTemporaryQueue().getQueueName().equals(other.createTemporaryQueue().getQueueName()), "b");
    }

    @Case public void queueRequestor() throws Exception {
        Session server = auto();
        answer(server.createConsumer(queue(server)), server);
        QueueConnection connection = closing(factory().createQueueConnection());
        connection.start();
        QueueSession session = connection.createQueueSession(false, AUTO);
        QueueRequestor requestor = new QueueRequestor(session, session.createQueue(name()));
        for (int i = 0; i < 20; i++) {
            Message request = session.createTextMessage("q" + i);
            Message reply = requestor.request(request);
            equal("re: q" + i, text(reply));
            equal(request.getJMSMessageID(), reply.getJMSCorrelationID());
        }
    }

    @Case public void topicRequestor() throws Exception {
        Session server = auto();
        answer(server.createConsumer(topic(server)), server);
        TopicConnection connection = closing(factory().createTopicConnection());
        connection.start();
        TopicSession session = connection.createTopicSession(false, AUTO);
        TopicRequestor requestor = new TopicRequestor(session, session.createTopic(name()));
        for (int i = 0; i < 5; i++) { equal("re: t" + i, text(requestor.request(session.createTextMessage("t" + i)))); }
    }

    @Case public void newReplyQueueForEach() throws Exception {
        Session server = auto(), session = auto();
        answer(server.createConsumer(queue(server)), server);
        for (int i = 0; i < 10; i++) {
            TemporaryQueue reply = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(reply);
            TextMessage request = session.createTextMessage("n" + i);
            request.setJMSReplyTo(reply);
            session.createProducer(queue(session)).send(request);
            equal("re: n" + i, nextText(consumer));
            consumer.close();
            reply.delete();
        }
    }

    @Case public void onlyOfTheOwnConnection() throws Exception {
        Session session = auto(), other = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        fails(InvalidDestinationException.class, () -> other.createConsumer(queue));
    }

    @Case public void sharedBySessions() throws Exception {
        ActiveMQConnection connection = connect();
        Session a = connection.createSession(false, AUTO), b = connection.createSession(false, AUTO);
        TemporaryQueue queue = a.createTemporaryQueue();
        send(a, queue, "x");
        a.close();
        equal("x", nextText(b.createConsumer(queue)));
    }

    @Case public void sendFromAnotherConnection() throws Exception {
        Session session = auto(), other = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        eventually(() -> {
            try { send(other, queue, "x"); return true; } catch (JMSException early) { return false; }
        }, "the other connection does not know the queue");
        equal("x", nextText(session.createConsumer(queue)));
    }

    @Case public void deleted() throws Exception {
        Session session = auto(), other = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        queue.delete();
        fails(JMSException.class, () -> send(session, queue, "x"));
        eventually(() -> {
            try { send(other, queue, "x"); return false; } catch (JMSException right) { return true; }
        }, "the other connection still sends");
    }

    @Case public void deletedWithItsConnection() throws Exception {
        ActiveMQConnection connection = connect();
        TemporaryQueue queue = connection.createSession(false, AUTO).createTemporaryQueue();
        Session other = auto();
        connection.close();
        eventually(() -> {
            try { send(other, queue, "x"); return false; } catch (JMSException right) { return true; }
        }, "the queue outlives its connection");
    }

    @Case public void deleteInUse() throws Exception {
        Session session = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(queue);
        fails(JMSException.class, queue::delete);
        consumer.close();
        queue.delete();
    }

    @Case public void topicDeleteInUse() throws Exception {
        Session session = auto();
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer consumer = session.createConsumer(topic);
        fails(JMSException.class, topic::delete);
        consumer.close();
        topic.delete();
    }

    @Case public void withoutAdvisories() throws Exception {
        Session server = session(AUTO, "jms.watchTopicAdvisories=false"), session = auto();
        answer(server.createConsumer(queue(server)), server);
        TemporaryQueue reply = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(reply);
        TextMessage request = session.createTextMessage("x");
        request.setJMSReplyTo(reply);
        session.createProducer(queue(session)).send(request);
        equal("re: x", nextText(consumer));
    }

    @Case public void goneAndNotWatched() throws Exception {
        ActiveMQConnection connection = connect();
        TemporaryQueue queue = connection.createSession(false, AUTO).createTemporaryQueue();
        connection.close();
        Session other = session(AUTO, "jms.watchTopicAdvisories=false");
        check(fails(DestinationDoesNotExistException.class, () -> send(other, queue, "x")).isTemporary(), "temporary");
    }

    @Case public void persistentMessages() throws Exception {
        Session session = auto();
        TemporaryQueue queue = session.createTemporaryQueue();
        count(session, queue, 100);
        equal(numbers(0, 100), browse(session, queue));
        equal(numbers(0, 100), nextTexts(session.createConsumer(queue), 100));
    }

    @Case public void inATransaction() throws Exception {
        Session session = transacted();
        TemporaryQueue queue = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(queue);
        count(session, queue, 2);
        nothing(consumer);
        session.commit();
        equal(numbers(0, 2), nextTexts(consumer, 2));
        session.commit();
    }

    @Case public void requestInATransaction() throws Exception {
        Session server = auto(), session = transacted();
        answer(server.createConsumer(queue(server)), server);
        TemporaryQueue reply = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(reply);
        TextMessage request = session.createTextMessage("x");
        request.setJMSReplyTo(reply);
        session.createProducer(queue(session)).send(request);
        session.commit();
        equal("re: x", nextText(consumer));
        session.commit();
    }

    @Case public void replyToSurvivesForwarding() throws Exception {
        Session session = auto();
        TemporaryTopic topic = session.createTemporaryTopic();
        TextMessage message = session.createTextMessage("x");
        message.setJMSReplyTo(topic);
        session.createProducer(queue(session)).send(message);
        Destination reply = next(session.createConsumer(queue(session))).getJMSReplyTo();
        equal(topic, reply);
        check(reply instanceof TemporaryTopic, "kind: " + reply.getClass());
        comes(List.of(), session.createConsumer(reply));
    }
}
