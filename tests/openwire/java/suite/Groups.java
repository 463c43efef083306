package suite;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;

/** Message groups: one consumer for each, as long as it lives. */
public final class Groups extends Theme {
    private void sendTo(Session session, String group, int sequence, String text) throws JMSException {
        TextMessage message = session.createTextMessage(text);
        message.setStringProperty("JMSXGroupID", group);
        if (sequence != 0) { message.setIntProperty("JMSXGroupSeq", sequence); }
        session.createProducer(queue(session)).send(message);
    }

    @Case public void oneConsumerEach() throws Exception {
        Session sender = auto();
        ConcurrentHashMap<String, List<Integer>> takers = new ConcurrentHashMap<>();
        LinkedBlockingQueue<String> came = new LinkedBlockingQueue<>();
        for (int i = 0; i < 3; i++) {
            int number = i;
            Session session = auto();
            session.createConsumer(queue(session)).setMessageListener(m -> {
                try {
                    String group = m.getStringProperty("JMSXGroupID");
                    takers.computeIfAbsent(group, g -> new java.util.concurrent.CopyOnWriteArrayList<>()).add(number);
                    came.add(text(m));
                } catch (JMSException problem) { came.add(problem.toString()); }
            });
        }
        for (int i = 0; i < 60; i++) { sendTo(sender, "g" + i % 6, 0, String.valueOf(i)); }
        take(came, 60);
        for (List<Integer> each : takers.values()) {
            equal(10, each.size());
            equal(1, (int) each.stream().distinct().count(), "consumers of a group: " + takers);
        }
        check(takers.values().stream().map(each -> each.get(0)).distinct().count() > 1, "one consumer has all groups");
    }

    @Case public void firstForConsumer() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        sendTo(session, "g", 0, "a");
        sendTo(session, "g", 0, "b");
        equal(true, next(consumer).getBooleanProperty("JMSXGroupFirstForConsumer"));
        equal(false, next(consumer).getBooleanProperty("JMSXGroupFirstForConsumer"));
    }

    @Case public void closedBySequence() throws Exception {
        Session session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        sendTo(session, "g", 0, "a");
        sendTo(session, "g", -1, "b");
        sendTo(session, "g", 0, "c");
        next(consumer);
        Message last = next(consumer);
        equal(-1, last.getIntProperty("JMSXGroupSeq"));
        Message fresh = next(consumer);
        equal("c", text(fresh));
        equal(true, fresh.getBooleanProperty("JMSXGroupFirstForConsumer"));
    }

    @Case public void movesWhenItsConsumerCloses() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer a = session.createConsumer(queue(session));
        sendTo(session, "g", 0, "0");
        nextText(a);
        MessageConsumer b = other.createConsumer(queue(other));
        sendTo(session, "g", 0, "1");
        equal("1", nextText(a));
        nothing(b);
        a.close();
        sendTo(session, "g", 0, "2");
        Message moved = next(b);
        equal("2", text(moved));
        equal(true, moved.getBooleanProperty("JMSXGroupFirstForConsumer"));
    }

    @Case public void orderWithinAGroup() throws Exception {
        Session session = auto(), one = session(CLIENT), two = auto();
        MessageConsumer a = one.createConsumer(queue(one));
        sendTo(session, "g", 0, "0");
        next(a);
        MessageConsumer b = two.createConsumer(queue(two));
        for (int i = 1; i < 5; i++) { sendTo(session, "g", 0, String.valueOf(i)); }
        nothing(b);
        ((org.apache.activemq.ActiveMQSession) one).getConnection().close();
        equal(numbers(0, 5), nextTexts(b, 5));
    }

    @Case public void ungroupedGoesToAll() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer a = session.createConsumer(queue(session)), b = other.createConsumer(queue(other));
        sendTo(session, "g", 0, "grouped");
        count(session, queue(session), 10);
        List<String> all = new ArrayList<>(rest(a));
        int first = all.size();
        all.addAll(rest(b));
        equal(11, all.size());
        check(first > 0 && first < 11, "one consumer got all");
    }

    @Case public void inATransaction() throws Exception {
        Session sender = transacted(), session = auto();
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 4; i++) { sendTo(sender, "g" + i % 2, 0, String.valueOf(i)); }
        sender.commit();
        equal(4, nextTexts(consumer, 4).size());
    }
}
