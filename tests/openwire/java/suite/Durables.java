package suite;

import java.util.List;
import javax.jms.*;

/** Durable subscriptions. */
public final class Durables extends Theme {
    private Session subscribing() throws JMSException {
        return connectAs(id).createSession(false, AUTO);
    }

    private void away(Session session, TopicSubscriber subscriber) throws JMSException {
        subscriber.close();
        ((org.apache.activemq.ActiveMQSession) session).getConnection().close();
    }

    private void publish(String... texts) throws JMSException {
        Session session = auto();
        send(session, topic(session), texts);
    }

    @Case public void keptWhileAway() throws Exception {
        Session session = subscribing();
        away(session, session.createDurableSubscriber(topic(session), "s"));
        publish("a", "b");
        session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        equal(List.of("a", "b"), nextTexts(subscriber, 2));
        publish("c");
        equal("c", nextText(subscriber));
        subscriber.close();
        session.unsubscribe("s");
    }

    @Case public void acknowledgedIsGone() throws Exception {
        Session session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        publish("a", "b", "c");
        equal("a", nextText(subscriber));
        away(session, subscriber);
        session = subscribing();
        subscriber = session.createDurableSubscriber(topic(session), "s");
        comes(List.of("b", "c"), subscriber);
        subscriber.close();
        session.unsubscribe("s");
    }

    @Case public void unacknowledgedComesAgain() throws Exception {
        Session session = connectAs(id).createSession(false, CLIENT);
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        publish("a", "b");
        next(subscriber);
        away(session, subscriber);
        session = subscribing();
        subscriber = session.createDurableSubscriber(topic(session), "s");
        Message again = next(subscriber);
        equal("a", text(again));
        equal(true, again.getJMSRedelivered());
        equal("b", nextText(subscriber));
    }

    @Case public void unsubscribed() throws Exception {
        Session session = subscribing();
        session.createDurableSubscriber(topic(session), "s").close();
        publish("lost");
        session.unsubscribe("s");
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        nothing(subscriber);
    }

    @Case public void unsubscribeUnknown() throws Exception {
        Session session = subscribing();
        fails(InvalidDestinationException.class, () -> session.unsubscribe("nobody"));
    }

    @Case public void unsubscribeActive() throws Exception {
        Session session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        fails(JMSException.class, () -> session.unsubscribe("s"));
        publish("x");
        equal("x", nextText(subscriber));
        subscriber.close();
        session.unsubscribe("s");
    }

    @Case public void inUse() throws Exception {
        Session session = subscribing();
        TopicSubscriber first = session.createDurableSubscriber(topic(session), "s");
        fails(JMSException.class, () -> session.createDurableSubscriber(topic(session), "s"));
        publish("x");
        equal("x", nextText(first));
    }

    @Case public void needsAClientId() throws Exception {
        Session session = auto();
        fails(JMSException.class, () -> session.createDurableSubscriber(null, "s"));
    }

    @Case public void changedSelector() throws Exception {
        Session session = subscribing();
        session.createDurableSubscriber(topic(session), "s", "n = 1", false).close();
        publish("old");
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s", "n = 2", false);
        Session sender = auto();
        for (int i = 0; i < 4; i++) {
            TextMessage message = sender.createTextMessage(String.valueOf(i));
            message.setIntProperty("n", i);
            sender.createProducer(topic(sender)).send(message);
        }
        comes(List.of("2"), subscriber);
    }

    @Case public void changedTopic() throws Exception {
        Session session = subscribing();
        session.createDurableSubscriber(topic(session), "s").close();
        publish("old");
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session, "other"), "s");
        nothing(subscriber);
        send(session, topic(session, "other"), "new");
        equal("new", nextText(subscriber));
        publish("old again");
        nothing(subscriber);
    }

    @Case public void selectorWhileAway() throws Exception {
        Session session = subscribing();
        away(session, session.createDurableSubscriber(topic(session), "s", "n > 1", false));
        Session sender = auto();
        for (int i = 0; i < 4; i++) {
            TextMessage message = sender.createTextMessage(String.valueOf(i));
            message.setIntProperty("n", i);
            sender.createProducer(topic(sender)).send(message);
        }
        session = subscribing();
        comes(List.of("2", "3"), session.createDurableSubscriber(topic(session), "s", "n > 1", false));
    }

    @Case public void noLocal() throws Exception {
        Session session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s", null, true);
        send(session, topic(session), "own");
        publish("foreign");
        comes(List.of("foreign"), subscriber);
        equal(true, subscriber.getNoLocal());
    }

    @Case public void severalOfAClient() throws Exception {
        Session session = subscribing();
        TopicSubscriber a = session.createDurableSubscriber(topic(session), "a");
        TopicSubscriber b = session.createDurableSubscriber(topic(session), "b");
        publish("x");
        equal("x", nextText(a));
        equal("x", nextText(b));
        a.close();
        publish("y");
        equal("y", nextText(b));
        a = session.createDurableSubscriber(topic(session), "a");
        equal("y", nextText(a));
    }

    @Case public void sameNameOfTwoClients() throws Exception {
        Session one = connectAs(id + "-1").createSession(false, AUTO);
        Session two = connectAs(id + "-2").createSession(false, AUTO);
        TopicSubscriber a = one.createDurableSubscriber(topic(one), "s");
        TopicSubscriber b = two.createDurableSubscriber(topic(two), "s");
        publish("x");
        equal("x", nextText(a));
        equal("x", nextText(b));
    }

    @Case public void nonPersistentWhileAway() throws Exception {
        Session session = subscribing();
        away(session, session.createDurableSubscriber(topic(session), "s"));
        Session sender = auto();
        sendQuickly(sender, topic(sender), 3);
        publish("persistent");
        session = subscribing();
        List<String> came = rest(session.createDurableSubscriber(topic(session), "s"));
        check(came.contains("persistent"), "came: " + came);
    }

    @Case public void largeBacklog() throws Exception {
        Session session = connectAs(id, "jms.prefetchPolicy.durableTopicPrefetch=10").createSession(false, AUTO);
        away(session, session.createDurableSubscriber(topic(session), "s"));
        Session sender = transacted();
        count(sender, topic(sender), 300);
        sender.commit();
        session = connectAs(id, "jms.prefetchPolicy.durableTopicPrefetch=10").createSession(false, AUTO);
        equal(numbers(0, 300), nextTexts(session.createDurableSubscriber(topic(session), "s"), 300));
    }

    @Case public void oldStyle() throws Exception {
        TopicConnection connection = closing(factory().createTopicConnection());
        connection.setClientID(id);
        connection.start();
        TopicSession session = connection.createTopicSession(false, AUTO);
        TopicSubscriber subscriber = session.createDurableSubscriber(session.createTopic(name()), "s");
        session.createPublisher(session.createTopic(name())).publish(session.createTextMessage("x"));
        equal("x", nextText(subscriber));
        subscriber.close();
        session.unsubscribe("s");
    }

    @Case public void wildcard() throws Exception {
        Session session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(session.createTopic(name() + ".>"), "s");
        send(session, topic(session, "a.b"), "deep");
        send(session, topic(session, "c"), "flat");
        equal(List.of("deep", "flat"), nextTexts(subscriber, 2));
    }

    @Case public void closedSubscriberOfAnOpenConnection() throws Exception {
        Session session = subscribing();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        publish("a", "b", "c");
        equal("a", nextText(subscriber));
        subscriber.close();
        publish("d");
        subscriber = session.createDurableSubscriber(topic(session), "s");
        equal(List.of("b", "c", "d"), nextTexts(subscriber, 3));
    }
}
