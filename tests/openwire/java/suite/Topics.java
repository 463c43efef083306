package suite;

import java.util.List;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQTopicSubscriber;

/** Subscriptions that live with their consumer. */
public final class Topics extends Theme {
    @Case public void eachGetsAll() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer a = session.createConsumer(topic(session)), b = other.createConsumer(topic(other));
        count(session, topic(session), 5);
        equal(numbers(0, 5), nextTexts(a, 5));
        equal(numbers(0, 5), nextTexts(b, 5));
    }

    @Case public void nothingFromBefore() throws Exception {
        Session session = auto();
        send(session, topic(session), "before");
        MessageConsumer consumer = session.createConsumer(topic(session));
        send(session, topic(session), "after");
        equal("after", nextText(consumer));
    }

    @Case public void noLocal() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer none = session.createConsumer(topic(session), null, true);
        MessageConsumer all = session.createConsumer(topic(session), null, false);
        send(session, topic(session), "own");
        send(other, topic(other), "foreign");
        equal(List.of("own", "foreign"), nextTexts(all, 2));
        comes(List.of("foreign"), none);
    }

    @Case public void noLocalWithASelector() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer consumer = session.createConsumer(topic(session), "n = 1", true);
        for (Session sender : List.of(session, other)) {
            for (int i = 0; i < 2; i++) {
                TextMessage message = sender.createTextMessage((sender == other) + " " + i);
                message.setIntProperty("n", i);
                sender.createProducer(topic(sender)).send(message);
            }
        }
        comes(List.of("true 1"), consumer);
    }

    @Case public void queueAndTopicOfOneName() throws Exception {
        Session session = auto();
        MessageConsumer t = session.createConsumer(topic(session)), q = session.createConsumer(queue(session));
        send(session, topic(session), "t");
        send(session, queue(session), "q");
        comes(List.of("t"), t);
        comes(List.of("q"), q);
    }

    @Case public void smallPrefetch() throws Exception {
        Session session = session(CLIENT, "jms.prefetchPolicy.topicPrefetch=2");
        MessageConsumer consumer = session.createConsumer(topic(session));
        Session sender = auto();
        count(sender, topic(sender), 50);
        for (int i = 0; i < 50; i++) {
            Message message = next(consumer);
            equal(String.valueOf(i), text(message));
            if (i % 5 == 4) { message.acknowledge(); }
        }
    }

    @Case public void thousand() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer consumer = session.createConsumer(topic(session));
        sendQuickly(other, topic(other), 1000);
        equal(numbers(0, 1000), nextTexts(consumer, 1000));
    }

    @Case public void unsubscribedByClose() throws Exception {
        Session session = auto();
        MessageConsumer first = session.createConsumer(topic(session)), second = session.createConsumer(topic(session));
        first.close();
        send(session, topic(session), "x");
        equal("x", nextText(second));
    }

    @Case public void retroactive() throws Exception {
        Session session = auto();
        String name = "jms.Topics.retroactive." + id;
        count(session, session.createTopic(name), 3);
        Topic topic = session.createTopic(name + "?consumer.retroactive=true");
        equal(numbers(0, 3), nextTexts(session.createConsumer(topic), 3));
        nothing(session.createConsumer(session.createTopic(name)));
    }

    @Case public void oldStyle() throws Exception {
        TopicConnection connection = closing(factory().createTopicConnection());
        connection.start();
        TopicSession session = connection.createTopicSession(false, AUTO);
        Topic topic = session.createTopic(name());
        TopicSubscriber subscriber = session.createSubscriber(topic, "n = 2", false);
        TopicPublisher publisher = session.createPublisher(topic);
        for (int i = 0; i < 3; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("n", i);
            publisher.publish(message);
        }
        equal("2", nextText(subscriber));
        equal(topic, subscriber.getTopic());
        equal(topic, publisher.getTopic());
        equal(false, subscriber.getNoLocal());
        fails(javax.jms.IllegalStateException.class, () -> session.createQueue("q"));
        fails(javax.jms.IllegalStateException.class, () -> session.createBrowser(null));
    }

    @Case public void publishWithAnotherTopic() throws Exception {
        TopicConnection connection = closing(factory().createTopicConnection());
        connection.start();
        TopicSession session = connection.createTopicSession(false, AUTO);
        Topic topic = session.createTopic(name());
        TopicSubscriber subscriber = session.createSubscriber(topic);
        session.createPublisher(null).publish(topic, session.createTextMessage("x"), DeliveryMode.NON_PERSISTENT, 3, 0);
        equal(3, next(subscriber).getJMSPriority());
    }

    @Case public void rolledBackReceive() throws Exception {
        Session session = transacted("jms.redeliveryPolicy.initialRedeliveryDelay=0"), other = auto();
        MessageConsumer consumer = session.createConsumer(topic(session));
        count(other, topic(other), 2);
        nextTexts(consumer, 2);
        session.rollback();
        equal(numbers(0, 2), nextTexts(consumer, 2));
        session.commit();
        nothing(consumer);
    }

    @Case public void stoppedConnectionKeepsThem() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO), other = auto();
        MessageConsumer consumer = session.createConsumer(topic(session));
        connection.stop();
        count(other, topic(other), 3);
        equal(null, consumer.receive(QUIET_MS));
        connection.start();
        equal(numbers(0, 3), nextTexts(consumer, 3));
    }

    @Case public void greaterTwice() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createTopic(name() + ".*.>.>"));
        send(session, topic(session, "b.c"), "deep");
        equal("deep", nextText(consumer));
    }
}
