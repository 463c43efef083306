package suite;

import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;

/** Consumers with prefetch 0, which ask for each message. */
public final class Pulls extends Theme {
    private Session pulling(int mode) throws JMSException {
        return session(mode, "jms.prefetchPolicy.all=0");
    }

    private static long elapsedMs(Action action) throws Exception {
        long began = System.nanoTime();
        action.run();
        return (System.nanoTime() - began) / 1_000_000;
    }

    @Case public void receive() throws Exception {
        Session session = pulling(AUTO);
        count(session, queue(session), 10);
        equal(numbers(0, 10), nextTexts(session.createConsumer(queue(session)), 10));
    }

    @Case public void receiveNoWait() throws Exception {
        Session session = pulling(AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(null, consumer.receiveNoWait());
        count(session, queue(session), 2);
        equal("0", text(consumer.receiveNoWait()));
        equal("1", text(consumer.receiveNoWait()));
        equal(null, consumer.receiveNoWait());
    }

    @Case public void timeout() throws Exception {
        Session session = pulling(AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        long ms = elapsedMs(() -> equal(null, consumer.receive(500)));
        check(ms >= 400, "waited " + ms + " ms");
        send(session, queue(session), "x");
        equal("x", nextText(consumer));
    }

    @Case public void waitsForAMessage() throws Exception {
        Session session = pulling(AUTO), other = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        Thread thread = new Thread(() -> {
            try { came.add(text(consumer.receive())); } catch (JMSException problem) { came.add(problem.toString()); }
        });
        thread.start();
        Thread.sleep(200);
        send(other, queue(other), "late");
        equal("late", take(came));
    }

    @Case public void afterATimeoutNothingIsLost() throws Exception {
        Session session = pulling(AUTO), other = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(null, consumer.receive(100));
        count(other, queue(other), 3);
        comes(numbers(0, 3), other.createConsumer(queue(other)));
    }

    @Case public void takesNoMoreThanAsked() throws Exception {
        Session session = pulling(CLIENT), other = auto();
        count(other, queue(other), 5);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("0", nextText(consumer));
        comes(List.of("1", "2", "3", "4"), other.createConsumer(queue(other)));
    }

    @Case public void twoConsumers() throws Exception {
        Session session = pulling(AUTO), other = pulling(AUTO);
        count(session, queue(session), 6);
        MessageConsumer a = session.createConsumer(queue(session)), b = other.createConsumer(queue(other));
        for (int i = 0; i < 6; i++) { equal(String.valueOf(i), nextText(i % 2 == 0 ? a : b)); }
    }

    @Case public void inATransaction() throws Exception {
        Session session = transacted("jms.prefetchPolicy.queuePrefetch=0",
            "jms.redeliveryPolicy.initialRedeliveryDelay=0");
        Session other = auto();
        count(other, queue(other), 3);
        MessageConsumer consumer = session.createConsumer(queue(session));
        nextTexts(consumer, 2);
        session.rollback();
        equal(numbers(0, 3), nextTexts(consumer, 3));
        session.commit();
        equal(null, consumer.receiveNoWait());
    }

    @Case public void withASelector() throws Exception {
        Session session = pulling(AUTO);
        send(session, queue(session), "no");
        MessageConsumer consumer = session.createConsumer(queue(session), "n = 1");
        equal(null, consumer.receiveNoWait());
        equal(null, consumer.receive(200));
        TextMessage message = session.createTextMessage("yes");
        message.setIntProperty("n", 1);
        session.createProducer(queue(session)).send(message);
        equal("yes", nextText(consumer));
    }

    @Case public void listenersCannotPull() throws Exception {
        Session session = pulling(AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        fails(JMSException.class, () -> consumer.setMessageListener(m -> { }));
    }

    @Case public void fromADurableSubscription() throws Exception {
        Session session = connectAs(id, "jms.prefetchPolicy.durableTopicPrefetch=0").createSession(false, AUTO);
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        equal(null, subscriber.receiveNoWait());
        count(session, topic(session), 3);
        equal(numbers(0, 3), nextTexts(subscriber, 3));
        subscriber.close();
        session.unsubscribe("s");
    }

    @Case public void closedWhileWaiting() throws Exception {
        Session session = pulling(AUTO), other = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        Thread thread = new Thread(() -> {
            try { came.add(String.valueOf(consumer.receive())); } catch (JMSException problem) { came.add("error"); }
        });
        thread.start();
        Thread.sleep(200);
        consumer.close();
        equal("null", take(came));
        send(other, queue(other), "x");
        equal("x", nextText(other.createConsumer(queue(other))));
    }
}
