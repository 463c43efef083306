package suite;

import java.util.ArrayList;
import java.util.List;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;

/** Queues with several consumers: who gets what, in which order. */
public final class Queues extends Theme {
    @Case public void orderIsKept() throws Exception {
        Session session = auto();
        count(session, queue(session), 200);
        equal(numbers(0, 200), nextTexts(session.createConsumer(queue(session)), 200));
    }

    @Case public void eachMessageOnce() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer a = session.createConsumer(queue(session)), b = other.createConsumer(queue(other));
        count(session, queue(session), 20);
        List<String> all = new ArrayList<>(rest(a));
        check(!all.isEmpty() && all.size() < 20, "one consumer got " + all);
        all.addAll(rest(b));
        equal(20, all.size());
        check(all.containsAll(numbers(0, 20)), "came: " + all);
    }

    @Case public void prefetchOne() throws Exception {
        Session session = session(CLIENT, "jms.prefetchPolicy.queuePrefetch=1");
        Session other = session(AUTO, "jms.prefetchPolicy.queuePrefetch=1");
        count(other, queue(other), 10);
        Message held = next(session.createConsumer(queue(session)));
        List<String> fast = rest(other.createConsumer(queue(other)));
        check(fast.size() >= 8, "the fast consumer waits behind the slow one: " + fast);
        equal("0", text(held));
    }

    @Case public void prefetchOfTheDestination() throws Exception {
        Session session = session(CLIENT), other = auto();
        count(other, queue(other), 5);
        Queue queue = session.createQueue(name() + "?consumer.prefetchSize=1");
        Message held = next(session.createConsumer(queue));
        equal(queue(other), held.getJMSDestination());
        List<String> fast = rest(other.createConsumer(queue(other)));
        check(fast.size() >= 3, "the other consumer got only " + fast);
    }

    @Case public void exclusive() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer first = session.createConsumer(session.createQueue(name() + "?consumer.exclusive=true"));
        MessageConsumer second = other.createConsumer(other.createQueue(name() + "?consumer.exclusive=true"));
        count(session, queue(session), 10);
        equal(numbers(0, 10), nextTexts(first, 10));
        nothing(second);
        first.close();
        count(session, queue(session), 3);
        equal(numbers(0, 3), nextTexts(second, 3));
    }

    @Case public void exclusiveOfTheFactory() throws Exception {
        Session one = session(AUTO, "jms.exclusiveConsumer=true"), two = session(AUTO, "jms.exclusiveConsumer=true");
        MessageConsumer first = one.createConsumer(queue(one)), second = two.createConsumer(queue(two));
        count(one, queue(one), 10);
        equal(10, nextTexts(first, 10).size());
        nothing(second);
    }

    @Case public void exclusiveTakesOver() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, CLIENT), other = auto();
        String options = "?consumer.exclusive=true";
        MessageConsumer first = session.createConsumer(session.createQueue(name() + options));
        MessageConsumer second = other.createConsumer(other.createQueue(name() + options));
        count(other, queue(other), 6);
        next(first);
        connection.close();
        equal(numbers(0, 6), nextTexts(second, 6));
    }

    @Case public void consumerPriority() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer low = session.createConsumer(session.createQueue(name() + "?consumer.priority=1"));
        MessageConsumer high = other.createConsumer(other.createQueue(name() + "?consumer.priority=10"));
        count(session, queue(session), 10);
        equal(numbers(0, 10), nextTexts(high, 10));
        nothing(low);
        high.close();
        count(session, queue(session), 2);
        equal(numbers(0, 2), nextTexts(low, 2));
    }

    @Case public void negativePriority() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer low = session.createConsumer(session.createQueue(name() + "?consumer.priority=-5"));
        MessageConsumer normal = other.createConsumer(queue(other));
        count(session, queue(session), 5);
        equal(5, nextTexts(normal, 5).size());
        nothing(low);
    }

    @Case public void backInOrder() throws Exception {
        Session holding = session(CLIENT), other = auto();
        count(other, queue(other), 30);
        nextTexts(holding.createConsumer(queue(holding)), 10);
        ((org.apache.activemq.ActiveMQSession) holding).getConnection().close();
        send(other, queue(other), "last");
        MessageConsumer consumer = other.createConsumer(queue(other));
        equal(numbers(0, 30), nextTexts(consumer, 30));
        equal("last", nextText(consumer));
    }

    @Case public void consumerClosedWithUndelivered() throws Exception {
        Session session = auto();
        count(session, queue(session), 10);
        MessageConsumer first = session.createConsumer(queue(session));
        equal("0", nextText(first));
        first.close();
        MessageConsumer second = session.createConsumer(queue(session));
        for (int i = 1; i < 10; i++) {
            Message message = next(second);
            equal(String.valueOf(i), text(message));
            equal(false, message.getJMSRedelivered(), "redelivered");
        }
    }

    @Case public void priorityOrder() throws Exception {
        Session session = auto();
        Queue queue = session.createQueue("jms.Queues.priority." + id);
        MessageProducer producer = session.createProducer(queue);
        for (int i = 0; i < 10; i++) {
            producer.send(session.createTextMessage(String.valueOf(i)), DeliveryMode.PERSISTENT, i, 0);
        }
        Session other = session(AUTO, "jms.messagePrioritySupported=true");
        List<String> expected = numbers(0, 10);
        java.util.Collections.reverse(expected);
        equal(expected, nextTexts(other.createConsumer(queue), 10));
    }

    @Case public void largeMessages() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 5; i++) {
            BytesMessage message = session.createBytesMessage();
            message.writeInt(i);
            message.writeBytes(new byte[1_000_000]);
            producer.send(message);
        }
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 5; i++) {
            BytesMessage got = next(consumer, BytesMessage.class);
            equal(1_000_004L, got.getBodyLength());
            equal(i, got.readInt());
        }
    }

    @Case public void oldStyle() throws Exception {
        QueueConnection connection = closing(factory().createQueueConnection());
        connection.start();
        QueueSession session = connection.createQueueSession(false, AUTO);
        Queue queue = session.createQueue(name());
        QueueSender sender = session.createSender(queue);
        TextMessage message = session.createTextMessage("x");
        message.setIntProperty("n", 1);
        sender.send(message);
        QueueReceiver receiver = session.createReceiver(queue, "n = 1");
        equal("x", nextText(receiver));
        equal(queue, receiver.getQueue());
        equal(queue, sender.getQueue());
        fails(javax.jms.IllegalStateException.class, () -> session.createTopic("t"));
        fails(javax.jms.IllegalStateException.class, session::createTemporaryTopic);
    }

    @Case public void oddNames() throws Exception {
        Session session = auto();
        for (String odd : List.of("with space", "ümlaut", "a/b", "a:b", "MiXeD", "x".repeat(200))) {
            Queue queue = session.createQueue(name() + "." + odd);
            send(session, queue, odd);
            Message got = next(session.createConsumer(queue));
            equal(odd, text(got));
            equal(queue, got.getJMSDestination());
        }
    }

    @Case public void lateConsumerGetsItsShare() throws Exception {
        Session session = session(CLIENT, "jms.prefetchPolicy.queuePrefetch=5"), other = auto();
        count(other, queue(other), 20);
        next(session.createConsumer(queue(session)));
        List<String> late = rest(other.createConsumer(queue(other)));
        check(late.containsAll(numbers(6, 20)), "late: " + late);
    }
}
