package suite;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;

/** Client ids, closing, starting and stopping, metadata. */
public final class Connections extends Theme {
    @Case public void clientIdInUse() throws Exception {
        ActiveMQConnection first = connectAs(id);
        ActiveMQConnection second = open();
        fails(InvalidClientIDException.class, () -> second.setClientID(id));
        Session session = first.createSession(false, AUTO);
        send(session, queue(session), "x");
        equal("x", nextText(session.createConsumer(queue(session))));
    }

    @Case public void clientIdFreeAgain() throws Exception {
        connectAs(id).close();
        connectAs(id).close();
        equal(id, connectAs(id).getClientID());
    }

    @Case public void clientIdOfTheFactory() throws Exception {
        equal(id, connect("jms.clientID=" + id).getClientID());
    }

    @Case public void clientIdTwice() throws Exception {
        ActiveMQConnection connection = open();
        connection.setClientID(id);
        fails(javax.jms.IllegalStateException.class, () -> connection.setClientID(id + "x"));
    }

    @Case public void clientIdTooLate() throws Exception {
        ActiveMQConnection connection = open();
        connection.createSession(false, AUTO);
        fails(javax.jms.IllegalStateException.class, () -> connection.setClientID(id));
    }

    @Case public void clientIdWithUnicode() throws Exception {
        String clientId = id + " ü/€";
        Session session = connectAs(clientId).createSession(false, AUTO);
        session.createDurableSubscriber(topic(session), "name with ü").close();
        session.unsubscribe("name with ü");
    }

    @Case public void metaData() throws Exception {
        ConnectionMetaData about = connect().getMetaData();
        equal("ActiveMQ", about.getJMSProviderName());
        check(about.getJMSMajorVersion() >= 1, "version " + about.getJMSVersion());
        List<?> names = Collections.list(about.getJMSXPropertyNames());
        check(names.contains("JMSXGroupID") && names.contains("JMSXDeliveryCount"), "names: " + names);
    }

    @Case public void brokerIsKnown() throws Exception {
        ActiveMQConnection connection = connect();
        connection.createSession(false, AUTO);
        eventually(() -> connection.getBrokerInfo() != null, "no BrokerInfo came");
        check(!connection.getBrokerInfo().getBrokerId().getValue().isEmpty(), "no broker id");
        check(connection.getBrokerName() != null, "no broker name");
    }

    @Case public void closedTwice() throws Exception {
        ActiveMQConnection connection = connect();
        connection.close();
        connection.close();
        fails(javax.jms.IllegalStateException.class, () -> connection.createSession(false, AUTO));
        fails(javax.jms.IllegalStateException.class, connection::start);
        fails(javax.jms.IllegalStateException.class, connection::getMetaData);
    }

    @Case public void closeEndsSessions() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageProducer producer = session.createProducer(queue(session));
        MessageConsumer consumer = session.createConsumer(queue(session));
        Message message = session.createMessage();
        connection.close();
        fails(javax.jms.IllegalStateException.class, () -> producer.send(message));
        fails(javax.jms.IllegalStateException.class, consumer::receiveNoWait);
        fails(javax.jms.IllegalStateException.class, () -> session.createQueue("x"));
    }

    @Case public void closeEndsAReceive() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        java.util.concurrent.LinkedBlockingQueue<String> came = new java.util.concurrent.LinkedBlockingQueue<>();
        new Thread(() -> {
            try { came.add(String.valueOf(consumer.receive())); } catch (JMSException problem) { came.add("null"); }
        }).start();
        Thread.sleep(200);
        connection.close();
        equal("null", take(came));
    }

    @Case public void notStarted() throws Exception {
        ActiveMQConnection connection = open();
        Session session = connection.createSession(false, AUTO);
        send(session, queue(session), "x");
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal(null, consumer.receive(QUIET_MS));
        connection.start();
        equal("x", nextText(consumer));
    }

    @Case public void stoppedAndStarted() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        for (int i = 0; i < 3; i++) {
            connection.stop();
            send(session, queue(session), String.valueOf(i));
            equal(null, consumer.receive(50));
            connection.start();
            equal(String.valueOf(i), nextText(consumer));
        }
    }

    @Case public void exceptionListener() throws Exception {
        ActiveMQConnection connection = connect();
        Reports reports = new Reports();
        connection.setExceptionListener(reports);
        equal(reports, connection.getExceptionListener());
        Session session = connection.createSession(false, AUTO);
        send(session, queue(session), "x");
        equal("x", nextText(session.createConsumer(queue(session))));
        fails(InvalidSelectorException.class, () -> session.createConsumer(queue(session), "x ="));
        equal("[]", reports.all.toString());
    }

    @Case public void manySessions() throws Exception {
        ActiveMQConnection connection = connect();
        List<MessageConsumer> consumers = new ArrayList<>();
        Session sender = connection.createSession(false, AUTO);
        for (int i = 0; i < 30; i++) {
            Session session = connection.createSession(i % 2 == 0, i % 2 == 0 ? Session.SESSION_TRANSACTED : AUTO);
            consumers.add(session.createConsumer(queue(session, String.valueOf(i))));
        }
        for (int i = 0; i < 30; i++) { send(sender, queue(sender, String.valueOf(i)), "m" + i); }
        for (int i = 0; i < 30; i++) { equal("m" + i, nextText(consumers.get(i))); }
    }

    @Case public void manyConnections() throws Exception {
        List<ActiveMQConnection> all = new ArrayList<>();
        for (int i = 0; i < 40; i++) { all.add(connect()); }
        for (ActiveMQConnection connection : all) { connection.close(); }
        Session session = auto();
        send(session, queue(session), "x");
        equal("x", nextText(session.createConsumer(queue(session))));
    }

    @Case public void tightAndCachedAsked() throws Exception {
        String sign = url().startsWith("failover") ? "nested." : "";
        Session session = session(AUTO, sign + "wireFormat.tightEncodingEnabled=true",
            sign + "wireFormat.cacheEnabled=true");
        count(session, queue(session), 20);
        equal(numbers(0, 20), nextTexts(session.createConsumer(queue(session)), 20));
    }

    @Case public void looseAndUncachedAsked() throws Exception {
        String sign = url().startsWith("failover") ? "nested." : "";
        Session session = session(AUTO, sign + "wireFormat.tightEncodingEnabled=false",
            sign + "wireFormat.cacheEnabled=false", sign + "wireFormat.stackTraceEnabled=false");
        count(session, queue(session), 20);
        equal(numbers(0, 20), nextTexts(session.createConsumer(queue(session)), 20));
    }

    @Case public void olderVersions() throws Exception {
        String sign = url().startsWith("failover") ? "nested." : "";
        for (int version : new int[] {9, 10, 11, 12}) {
            Session session = session(AUTO, sign + "wireFormat.version=" + version);
            Queue queue = queue(session, "v" + version);
            TextMessage message = session.createTextMessage("v" + version);
            message.setIntProperty("n", version);
            message.setStringProperty("JMSXGroupID", "g");
            session.createProducer(queue).send(message);
            equal(List.of("v" + version), browse(session, queue));
            Message got = next(session.createConsumer(queue, "n = " + version));
            equal(message.getJMSMessageID(), got.getJMSMessageID());
        }
    }

    @Case public void shortInactivity() throws Exception {
        String sign = url().startsWith("failover") ? "nested." : "";
        ActiveMQConnection connection = connect(sign + "wireFormat.maxInactivityDuration=1500",
            sign + "wireFormat.maxInactivityDurationInitalDelay=500");
        Reports reports = new Reports();
        connection.setExceptionListener(reports);
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        Thread.sleep(5000);
        send(session, queue(session), "x");
        equal("x", nextText(consumer));
        equal("[]", reports.all.toString());
    }

    @Case public void failoverUrl() throws Exception {
        String nested = url().startsWith("failover") ? url() : "failover:(" + url() + ")?maxReconnectAttempts=2";
        ActiveMQConnection connection =
            closing((ActiveMQConnection) new org.apache.activemq.ActiveMQConnectionFactory(nested).createConnection());
        connection.start();
        Session session = connection.createSession(false, AUTO);
        count(session, queue(session), 5);
        equal(numbers(0, 5), nextTexts(session.createConsumer(queue(session)), 5));
    }

    @Case public void deletedDestinationSource() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        count(session, queue(session), 3);
        connection.destroyDestination(new org.apache.activemq.command.ActiveMQQueue(name()));
        nothing(session.createConsumer(queue(session)));
    }

    @Case public void destroyedTopicInUse() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(topic(session));
        fails(JMSException.class,
            () -> connection.destroyDestination(new org.apache.activemq.command.ActiveMQTopic(name())));
        send(session, topic(session), "x");
        equal("x", nextText(consumer));
    }

    @Case public void destroyInUse() throws Exception {
        ActiveMQConnection connection = connect();
        Session session = connection.createSession(false, AUTO);
        MessageConsumer consumer = session.createConsumer(queue(session));
        fails(JMSException.class,
            () -> connection.destroyDestination(new org.apache.activemq.command.ActiveMQQueue(name())));
        send(session, queue(session), "x");
        equal("x", nextText(consumer));
    }
}
