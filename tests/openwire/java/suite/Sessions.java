package suite;

import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;

/** Listeners, sessions and how they end. */
public final class Sessions extends Theme {
    @Case public void listenersOfASessionTakeTurns() throws Exception {
        Session session = auto(), sender = auto();
        AtomicInteger running = new AtomicInteger(), most = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(40);
        MessageListener listener = m -> {
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            Thread.yield();
            running.decrementAndGet();
            done.countDown();
        };
        session.createConsumer(queue(session, "a")).setMessageListener(listener);
        session.createConsumer(queue(session, "b")).setMessageListener(listener);
        count(sender, queue(sender, "a"), 20);
        count(sender, queue(sender, "b"), 20);
        check(done.await(SOON_MS, java.util.concurrent.TimeUnit.MILLISECONDS), "left: " + done.getCount());
        equal(1, most.get());
    }

    @Case public void sessionsRunBesideEachOther() throws Exception {
        ActiveMQConnection connection = connect("jms.prefetchPolicy.queuePrefetch=1");
        CountDownLatch both = new CountDownLatch(2);
        Set<String> threads = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 2; i++) {
            Session session = connection.createSession(false, AUTO);
            session.createConsumer(queue(session)).setMessageListener(m -> {
                threads.add(Thread.currentThread().getName());
                both.countDown();
                try { both.await(); } catch (InterruptedException problem) { Thread.currentThread().interrupt(); }
            });
        }
        Session sender = auto();
        count(sender, queue(sender), 2);
        check(both.await(SOON_MS, java.util.concurrent.TimeUnit.MILLISECONDS), "one listener waits for the other");
        equal(2, threads.size());
    }

    @Case public void replyFromAListener() throws Exception {
        Session session = auto(), sender = auto();
        MessageProducer producer = session.createProducer(queue(session, "out"));
        session.createConsumer(queue(session, "in")).setMessageListener(m -> {
            try { producer.send(session.createTextMessage(text(m) + "!")); } catch (JMSException problem) {
                throw new RuntimeException(problem);
            }
        });
        count(sender, queue(sender, "in"), 10);
        MessageConsumer out = sender.createConsumer(queue(sender, "out"));
        for (int i = 0; i < 10; i++) { equal(i + "!", nextText(out)); }
    }

    @Case public void listenerSetLater() throws Exception {
        Session session = auto();
        count(session, queue(session), 5);
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("0", nextText(consumer));
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        consumer.setMessageListener(m -> {
            try { came.add(text(m)); } catch (JMSException problem) { came.add(problem.toString()); }
        });
        equal(numbers(1, 5), take(came, 4));
    }

    @Case public void listenerReplaced() throws Exception {
        Session session = auto(), sender = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        LinkedBlockingQueue<String> one = new LinkedBlockingQueue<>(), two = new LinkedBlockingQueue<>();
        consumer.setMessageListener(m -> one.add("one"));
        send(sender, queue(sender), "x");
        equal("one", take(one));
        consumer.setMessageListener(m -> two.add("two"));
        send(sender, queue(sender), "y");
        equal("two", take(two));
        equal(0, one.size());
    }

    @Case public void receiveWithAListener() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        consumer.setMessageListener(m -> { });
        fails(javax.jms.IllegalStateException.class, consumer::receiveNoWait);
    }

    @Case public void distinguishedListener() throws Exception {
        Session session = auto();
        LinkedBlockingQueue<Message> came = new LinkedBlockingQueue<>();
        session.setMessageListener(came::add);
        check(session.getMessageListener() != null, "no listener");
    }

    @Case public void closeInTheMiddle() throws Exception {
        Session session = auto(), other = auto();
        count(other, queue(other), 10);
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { came.add(text(m)); Thread.sleep(30); } catch (Exception problem) { came.add(problem.toString()); }
        });
        equal("0", take(came));
        session.close();
        int listened = came.size() + 1;
        List<String> left = rest(other.createConsumer(queue(other)));
        equal(numbers(listened, 10), left);
    }

    @Case public void closeConsumerInItsListener() throws Exception {
        Session session = auto(), other = auto();
        count(other, queue(other), 3);
        MessageConsumer consumer = session.createConsumer(queue(session));
        CountDownLatch closed = new CountDownLatch(1);
        consumer.setMessageListener(m -> {
            try { consumer.close(); } catch (JMSException problem) { throw new RuntimeException(problem); }
            closed.countDown();
        });
        check(closed.await(SOON_MS, java.util.concurrent.TimeUnit.MILLISECONDS), "not closed");
        comes(List.of("1", "2"), other.createConsumer(queue(other)));
    }

    @Case public void closedConsumer() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        consumer.close();
        consumer.close();
        fails(javax.jms.IllegalStateException.class, consumer::receiveNoWait);
        fails(javax.jms.IllegalStateException.class, consumer::getMessageSelector);
    }

    @Case public void closedProducer() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        producer.close();
        producer.close();
        fails(javax.jms.IllegalStateException.class, () -> producer.send(session.createMessage()));
    }

    @Case public void closedSession() throws Exception {
        Session session = auto();
        session.close();
        session.close();
        fails(javax.jms.IllegalStateException.class, () -> session.createProducer(null));
        fails(javax.jms.IllegalStateException.class, session::getTransacted);
    }

    @Case public void receiveTimesOut() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        long began = System.nanoTime();
        equal(null, consumer.receive(400));
        long ms = (System.nanoTime() - began) / 1_000_000;
        check(ms >= 350, "waited " + ms + " ms");
        equal(null, consumer.receiveNoWait());
    }

    @Case public void receiveWaits() throws Exception {
        Session session = auto(), sender = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        new Thread(() -> {
            try { came.add(text(consumer.receive())); } catch (JMSException problem) { came.add(problem.toString()); }
        }).start();
        Thread.sleep(100);
        send(sender, queue(sender), "x");
        equal("x", take(came));
    }

    @Case public void manyConsumersOnAQueue() throws Exception {
        ActiveMQConnection connection = connect();
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        for (int i = 0; i < 10; i++) {
            Session session = connection.createSession(false, AUTO);
            session.createConsumer(queue(session)).setMessageListener(m -> {
                try { came.add(text(m)); } catch (JMSException problem) { came.add(problem.toString()); }
            });
        }
        Session sender = auto();
        count(sender, queue(sender), 100);
        List<String> all = take(came, 100);
        check(all.containsAll(numbers(0, 100)), "came: " + all);
    }

    @Case public void synchronousSessionDispatch() throws Exception {
        Session session = session(AUTO, "jms.dispatchAsync=false", "jms.alwaysSessionAsync=false");
        count(session, queue(session), 10);
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        session.createConsumer(queue(session)).setMessageListener(m -> {
            try { came.add(text(m)); } catch (JMSException problem) { came.add(problem.toString()); }
        });
        equal(numbers(0, 10), take(came, 10));
    }
}
