package suite;

import java.util.List;
import javax.jms.*;

/** Composite destinations, wildcards, virtual topics. */
public final class Names extends Theme {
    @Case public void compositeQueues() throws Exception {
        Session session = auto();
        send(session, session.createQueue(name() + ".a," + name() + ".b"), "x");
        for (String suffix : List.of("a", "b")) {
            Message got = next(session.createConsumer(queue(session, suffix)));
            equal("x", text(got));
            equal(queue(session, suffix), got.getJMSDestination());
        }
    }

    @Case public void compositeOfBothKinds() throws Exception {
        Session session = auto();
        MessageConsumer subscriber = session.createConsumer(topic(session, "t"));
        send(session, session.createQueue(name() + ".q,topic://" + name() + ".t"), "x");
        equal("x", nextText(subscriber));
        equal("x", nextText(session.createConsumer(queue(session, "q"))));
    }

    @Case public void compositeTopic() throws Exception {
        Session session = auto();
        MessageConsumer a = session.createConsumer(topic(session, "a")), b = session.createConsumer(topic(session, "b"));
        send(session, session.createTopic(name() + ".a," + name() + ".b,queue://" + name() + ".q"), "x");
        equal("x", nextText(a));
        equal("x", nextText(b));
        equal("x", nextText(session.createConsumer(queue(session, "q"))));
    }

    @Case public void compositeInATransaction() throws Exception {
        Session session = transacted(), other = auto();
        count(session, session.createQueue(name() + ".a," + name() + ".b"), 2);
        session.rollback();
        count(session, session.createQueue(name() + ".a," + name() + ".b"), 3);
        session.commit();
        comes(numbers(0, 3), other.createConsumer(queue(other, "a")));
        comes(numbers(0, 3), other.createConsumer(queue(other, "b")));
    }

    @Case public void compositeConsumer() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + ".a," + name() + ".b"));
        send(session, queue(session, "a"), "to a");
        equal("to a", nextText(consumer));
        send(session, queue(session, "b"), "to b");
        equal("to b", nextText(consumer));
    }

    @Case public void compositeConsumerClientAck() throws Exception {
        Session session = session(CLIENT), other = auto();
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + ".a," + name() + ".b"));
        send(other, queue(other, "a"), "1");
        next(consumer);
        send(other, queue(other, "b"), "2");
        next(consumer).acknowledge();
        consumer.close();
        nothing(other.createConsumer(queue(other, "a")));
        nothing(other.createConsumer(queue(other, "b")));
    }

    @Case public void starInQueues() throws Exception {
        Session session = auto();
        send(session, queue(session, "a.x"), "a");
        send(session, queue(session, "b.x"), "b");
        send(session, queue(session, "b.x.y"), "deep");
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + ".*.x"));
        List<String> came = nextTexts(consumer, 2);
        check(came.containsAll(List.of("a", "b")), "came: " + came);
        nothing(consumer);
    }

    @Case public void greaterInQueues() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + ".>"));
        send(session, queue(session, "a"), "1");
        send(session, queue(session, "a.b.c"), "2");
        Message first = next(consumer), second = next(consumer);
        equal("12", text(first) + text(second));
        equal(queue(session, "a.b.c"), second.getJMSDestination());
    }

    @Case public void starInTopics() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createTopic(name() + ".*.price"));
        send(session, topic(session, "ibm.price"), "1");
        send(session, topic(session, "ibm.volume"), "2");
        send(session, topic(session, "sun.price"), "3");
        Message first = next(consumer);
        equal(topic(session, "ibm.price"), first.getJMSDestination());
        equal("3", nextText(consumer));
        nothing(consumer);
    }

    @Case public void greaterInTopics() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createTopic(name() + ".>"));
        send(session, topic(session, "a"), "1");
        send(session, topic(session, "a.b.c.d"), "2");
        equal(List.of("1", "2"), nextTexts(consumer, 2));
    }

    @Case public void wildcardClientAck() throws Exception {
        Session session = session(CLIENT), other = auto();
        MessageConsumer consumer = session.createConsumer(session.createQueue(name() + ".*"));
        for (String suffix : List.of("a", "b", "c")) { send(other, queue(other, suffix), suffix); }
        nextTexts(consumer, 2);
        next(consumer).acknowledge();
        consumer.close();
        nothing(other.createConsumer(other.createQueue(name() + ".*")));
    }

    @Case public void virtualTopic() throws Exception {
        Session session = auto();
        Topic topic = session.createTopic("VirtualTopic." + id);
        Queue a = session.createQueue("Consumer.A.VirtualTopic." + id);
        Queue b = session.createQueue("Consumer.B.VirtualTopic." + id);
        MessageConsumer a1 = session.createConsumer(a), a2 = session.createConsumer(a), b1 = session.createConsumer(b);
        MessageConsumer plain = session.createConsumer(topic);
        count(session, topic, 10);
        equal(numbers(0, 10), nextTexts(b1, 10));
        equal(numbers(0, 10), nextTexts(plain, 10));
        equal(10, rest(a1).size() + rest(a2).size());
    }

    @Case public void virtualTopicKeepsForItsQueues() throws Exception {
        Session session = auto(), other = auto();
        Topic topic = session.createTopic("VirtualTopic." + id);
        session.createConsumer(session.createQueue("Consumer.A.VirtualTopic." + id)).close();
        count(session, topic, 3);
        equal(numbers(0, 3), nextTexts(other.createConsumer(other.createQueue("Consumer.A.VirtualTopic." + id)), 3));
    }

    @Case public void virtualTopicDestination() throws Exception {
        Session session = auto();
        Queue queue = session.createQueue("Consumer.A.VirtualTopic." + id);
        MessageConsumer consumer = session.createConsumer(queue);
        send(session, session.createTopic("VirtualTopic." + id), "x");
        Message got = next(consumer);
        equal("x", text(got));
        equal(queue, got.getJMSDestination());
    }

    @Case public void virtualTopicInATransaction() throws Exception {
        Session session = transacted(), other = auto();
        MessageConsumer consumer = other.createConsumer(other.createQueue("Consumer.A.VirtualTopic." + id));
        count(session, session.createTopic("VirtualTopic." + id), 2);
        nothing(consumer);
        session.commit();
        equal(numbers(0, 2), nextTexts(consumer, 2));
    }

    @Case public void virtualTopicWithASelector() throws Exception {
        Session session = auto();
        MessageConsumer consumer =
            session.createConsumer(session.createQueue("Consumer.A.VirtualTopic." + id), "n = 1");
        MessageProducer producer = session.createProducer(session.createTopic("VirtualTopic." + id));
        for (int i = 0; i < 3; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("n", i);
            producer.send(message);
        }
        comes(List.of("1"), consumer);
    }

    /** A consumer queue may stand for all topics below a name. */
    @Case public void virtualTopicByAPattern() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(session.createQueue("Consumer.W.VirtualTopic." + id + ".>"));
        for (String last : List.of("a", "b.c")) {
            send(session, session.createTopic("VirtualTopic." + id + "." + last), last);
        }
        equal(List.of("a", "b.c"), nextTexts(consumer, 2));
        nothing(consumer);
    }
}
