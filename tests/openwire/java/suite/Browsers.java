package suite;

import java.util.Enumeration;
import java.util.List;
import javax.jms.*;

/** Queue browsers look and take nothing. */
public final class Browsers extends Theme {
    private Session filled(int messages) throws JMSException {
        Session session = auto();
        count(session, queue(session), messages);
        return session;
    }

    @Case public void all() throws Exception {
        Session session = filled(5);
        equal(numbers(0, 5), browse(session, queue(session)));
        equal(numbers(0, 5), browse(session, queue(session)), "again");
        comes(numbers(0, 5), session.createConsumer(queue(session)));
    }

    @Case public void empty() throws Exception {
        Session session = auto();
        equal(List.of(), browse(session, queue(session)));
    }

    @Case public void withASelector() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 6; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("n", i);
            producer.send(message);
        }
        equal(List.of("4", "5"), browse(session, queue(session), "n > 3"));
        equal(6, browse(session, queue(session)).size());
    }

    @Case public void whatOthersHold() throws Exception {
        Session session = filled(6);
        Session holding = session(CLIENT);
        nextTexts(holding.createConsumer(queue(holding)), 2);
        equal(numbers(0, 6), browse(session, queue(session)));
    }

    @Case public void whatATransactionHolds() throws Exception {
        Session session = filled(3);
        Session holding = transacted();
        nextTexts(holding.createConsumer(queue(holding)), 3);
        equal(numbers(0, 3), browse(session, queue(session)));
        holding.commit();
        equal(List.of(), browse(session, queue(session)));
    }

    @Case public void sameMessages() throws Exception {
        Session session = auto();
        TextMessage sent = session.createTextMessage("x");
        sent.setIntProperty("n", 3);
        session.createProducer(queue(session)).send(sent);
        QueueBrowser browser = session.createBrowser(queue(session));
        Enumeration<?> all = browser.getEnumeration();
        check(all.hasMoreElements(), "nothing to see");
        Message seen = (Message) all.nextElement();
        equal(sent, seen);
        equal(sent.getJMSMessageID(), seen.getJMSMessageID());
        equal(3, seen.getIntProperty("n"));
        equal(false, seen.getJMSRedelivered());
        check(!all.hasMoreElements(), "more than one");
        browser.close();
        Message got = next(session.createConsumer(queue(session)));
        equal(seen, got);
        equal(false, got.getJMSRedelivered(), "redelivered after browsing");
    }

    @Case public void unfinished() throws Exception {
        Session session = filled(50);
        QueueBrowser browser = session.createBrowser(queue(session));
        Enumeration<?> all = browser.getEnumeration();
        check(all.hasMoreElements(), "nothing to see");
        all.nextElement();
        browser.close();
        equal(50, browse(session, queue(session)).size());
    }

    @Case public void moreThanThePrefetch() throws Exception {
        Session session = session(AUTO, "jms.prefetchPolicy.queueBrowserPrefetch=10");
        count(session, queue(session), 100);
        equal(numbers(0, 100), browse(session, queue(session)));
    }

    @Case public void aThousand() throws Exception {
        Session session = auto();
        sendQuickly(session, queue(session), 1000);
        Session browsing = session(AUTO, "jms.prefetchPolicy.queueBrowserPrefetch=100");
        equal(1000, browse(browsing, queue(browsing)).size());
    }

    @Case public void about() throws Exception {
        Session session = auto();
        QueueBrowser browser = session.createBrowser(queue(session), "a = 1");
        equal(queue(session), browser.getQueue());
        equal("a = 1", browser.getMessageSelector());
    }

    @Case public void inATransaction() throws Exception {
        Session session = transacted();
        count(session, queue(session), 2);
        session.commit();
        equal(numbers(0, 2), browse(session, queue(session)));
        session.rollback();
        equal(numbers(0, 2), nextTexts(session.createConsumer(queue(session)), 2));
        session.commit();
    }

    @Case public void whileOthersConsume() throws Exception {
        Session session = filled(20);
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 20; i++) {
            equal(String.valueOf(i), nextText(consumer));
            List<String> seen = browse(session, queue(session));
            check(!seen.contains(String.valueOf(i - 1)), "acknowledged and still seen: " + seen);
        }
    }

    @Case public void withPrefetchZero() throws Exception {
        Session session = session(AUTO, "jms.prefetchPolicy.queuePrefetch=0");
        count(session, queue(session), 3);
        equal(numbers(0, 3), browse(session, queue(session)));
    }

    @Case public void notStarted() throws Exception {
        filled(2);
        Session session = open().createSession(false, AUTO);
        QueueBrowser browser = session.createBrowser(queue(session));
        check(browser.getEnumeration() != null, "no enumeration");
        browser.close();
    }
}
