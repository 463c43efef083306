package suite;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import javax.jms.*;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.apache.activemq.ActiveMQXAConnection;
import org.apache.activemq.ActiveMQXAConnectionFactory;

/** Transactions of a coordinator, in two phases. */
public final class Xa extends Theme {
    private record Id(int format, byte[] global, byte[] branch) implements Xid {
        @Override public int getFormatId() { return format; }
        @Override public byte[] getGlobalTransactionId() { return global; }
        @Override public byte[] getBranchQualifier() { return branch; }

        boolean is(Xid other) {
            return other.getFormatId() == format && Arrays.equals(other.getGlobalTransactionId(), global)
                && Arrays.equals(other.getBranchQualifier(), branch);
        }
    }

    private Id xid(String branch) {
        return new Id(77, id.getBytes(StandardCharsets.UTF_8), branch.getBytes(StandardCharsets.UTF_8));
    }

    private XASession xa() throws JMSException {
        ActiveMQXAConnection connection =
            closing((ActiveMQXAConnection) new ActiveMQXAConnectionFactory(url()).createXAConnection());
        connection.start();
        return connection.createXASession();
    }

    private static void closeAll(Session session) throws JMSException {
        ((org.apache.activemq.ActiveMQSession) session).getConnection().close();
    }

    private void fails(int code, Action action) {
        equal(code, fails(XAException.class, action).errorCode, "error code");
    }

    /** Fails unless these texts are left in the queue. */
    private void left(List<String> expected) throws JMSException {
        Session session = auto();
        comes(expected, session.createConsumer(queue(session)));
        closeAll(session);
    }

    /** A prepared transaction that sends "x"; its connection is closed. */
    private Id prepared(String branch) throws Exception {
        XASession session = xa();
        Id xid = xid(branch);
        session.getXAResource().start(xid, XAResource.TMNOFLAGS);
        send(session, queue(session), "x");
        session.getXAResource().end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_OK, session.getXAResource().prepare(xid));
        closeAll(session);
        return xid;
    }

    private boolean recovered(XAResource resource, Id xid) throws XAException {
        return Arrays.stream(resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)).anyMatch(xid::is);
    }

    @Case public void onePhase() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        count(session, queue(session), 2);
        resource.end(xid, XAResource.TMSUCCESS);
        left(List.of());
        resource.commit(xid, true);
        left(numbers(0, 2));
    }

    @Case public void onePhaseToATopic() throws Exception {
        Session listener = auto();
        MessageConsumer consumer = listener.createConsumer(topic(listener));
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        send(session, topic(session), "x");
        resource.end(xid, XAResource.TMSUCCESS);
        nothing(consumer);
        resource.commit(xid, true);
        equal("x", nextText(consumer));
    }

    @Case public void twoPhases() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        count(session, queue(session), 2);
        resource.end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_OK, resource.prepare(xid));
        left(List.of());
        check(recovered(resource, xid), "it is not among the prepared");
        resource.commit(xid, false);
        check(!recovered(resource, xid), "it is still among the prepared");
        left(numbers(0, 2));
    }

    /** In a cluster these queues are in several stores. */
    @Case public void twoPhasesOverManyQueues() throws Exception {
        for (boolean commits : new boolean[] {false, true}) {
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Id xid = xid(commits ? "commit" : "rollback");
            resource.start(xid, XAResource.TMNOFLAGS);
            for (int i = 0; i < 8; i++) send(session, queue(session, "" + i), "x");
            resource.end(xid, XAResource.TMSUCCESS);
            equal(XAResource.XA_OK, resource.prepare(xid));
            closeAll(session);
            XASession other = xa();
            check(recovered(other.getXAResource(), xid), "it is not among the prepared");
            if (commits) other.getXAResource().commit(xid, false); else other.getXAResource().rollback(xid);
            check(!recovered(other.getXAResource(), xid), "it is still among the prepared");
            Session reader = auto();
            for (int i = 0; i < 8; i++) {
                comes(commits ? List.of("x") : List.of(), reader.createConsumer(queue(reader, "" + i)));
            }
            closeAll(reader);
        }
    }

    @Case public void rolledBack() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        count(session, queue(session), 2);
        resource.end(xid, XAResource.TMFAIL);
        resource.rollback(xid);
        left(List.of());
    }

    @Case public void rolledBackWhenPrepared() throws Exception {
        Id xid = prepared("1");
        XASession session = xa();
        session.getXAResource().rollback(xid);
        check(!recovered(session.getXAResource(), xid), "it is still among the prepared");
        left(List.of());
    }

    @Case public void committedByAnotherConnection() throws Exception {
        Id xid = prepared("1");
        XASession session = xa();
        check(recovered(session.getXAResource(), xid), "it is not among the prepared");
        session.getXAResource().commit(xid, false);
        left(List.of("x"));
    }

    @Case public void received() throws Exception {
        Session sender = auto();
        count(sender, queue(sender), 3);
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        MessageConsumer consumer = session.createConsumer(queue(session));
        resource.start(xid, XAResource.TMNOFLAGS);
        equal(numbers(0, 2), nextTexts(consumer, 2));
        resource.end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_OK, resource.prepare(xid));
        resource.commit(xid, false);
        closeAll(session);
        left(List.of("2"));
    }

    @Case public void receivedAndPreparedIsHeld() throws Exception {
        Session sender = auto();
        count(sender, queue(sender), 2);
        XASession session = xa();
        Id xid = xid("1");
        MessageConsumer consumer = session.createConsumer(queue(session));
        session.getXAResource().start(xid, XAResource.TMNOFLAGS);
        nextText(consumer);
        session.getXAResource().end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_OK, session.getXAResource().prepare(xid));
        closeAll(session);
        left(List.of("1"));
        XASession other = xa();
        other.getXAResource().rollback(xid);
        left(List.of("0"));
    }

    @Case public void readOnly() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        resource.end(xid, XAResource.TMSUCCESS);
        equal(XAResource.XA_RDONLY, resource.prepare(xid));
        check(!recovered(resource, xid), "a read-only transaction is prepared");
    }

    @Case public void unknown() throws Exception {
        XAResource resource = xa().getXAResource();
        fails(XAException.XAER_NOTA, () -> resource.commit(xid("none"), false));
        fails(XAException.XAER_NOTA, () -> resource.commit(xid("none"), true));
    }

    @Case(differs = "ActiveMQ answers XAER_RMFAIL, though the resource manager has not failed")
    public void unknownPrepared() throws Exception {
        XAResource resource = xa().getXAResource();
        int code = fails(XAException.class, () -> resource.prepare(xid("none"))).errorCode;
        check(code == XAException.XAER_NOTA || code == XAException.XA_RBROLLBACK, "error code " + code);
    }

    @Case public void lostConnectionRollsBack() throws Exception {
        XASession session = xa();
        Id xid = xid("1");
        session.getXAResource().start(xid, XAResource.TMNOFLAGS);
        send(session, queue(session), "lost");
        session.getXAResource().end(xid, XAResource.TMSUCCESS);
        closeAll(session);
        XAResource other = xa().getXAResource();
        check(!recovered(other, xid), "it is prepared");
        fails(XAException.XAER_NOTA, () -> other.commit(xid, false));
        left(List.of());
    }

    @Case public void branches() throws Exception {
        Id one = prepared("1"), two = prepared("2");
        XAResource resource = xa().getXAResource();
        check(recovered(resource, one) && recovered(resource, two), "not both are prepared");
        resource.commit(one, false);
        check(!recovered(resource, one) && recovered(resource, two), "not the second alone is prepared");
        resource.rollback(two);
        left(List.of("x"));
    }

    @Case public void sameResourceManager() throws Exception {
        XAResource one = xa().getXAResource(), two = xa().getXAResource();
        equal(true, one.isSameRM(two));
        equal(true, one.isSameRM(one));
    }

    @Case public void oneAfterTheOther() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 5; i++) {
            Id xid = xid(String.valueOf(i));
            resource.start(xid, XAResource.TMNOFLAGS);
            producer.send(session.createTextMessage(String.valueOf(i)));
            resource.end(xid, XAResource.TMSUCCESS);
            if (i == 2) { resource.rollback(xid); continue; }
            resource.prepare(xid);
            resource.commit(xid, false);
        }
        left(List.of("0", "1", "3", "4"));
    }

    @Case public void suspendedAndResumed() throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        send(session, queue(session), "a");
        resource.end(xid, XAResource.TMSUSPEND);
        resource.start(xid, XAResource.TMRESUME);
        send(session, queue(session), "b");
        resource.end(xid, XAResource.TMSUCCESS);
        resource.commit(xid, true);
        left(List.of("a", "b"));
    }

    @Case public void forgetUnknown() throws Exception {
        fails(XAException.XAER_NOTA, () -> xa().getXAResource().forget(xid("none")));
    }

    @Case(differs = "ActiveMQ drops a prepared transaction that no coordinator has decided")
    public void forgetPrepared() throws Exception {
        Id xid = prepared("1");
        XAResource resource = xa().getXAResource();
        try { resource.forget(xid); } catch (XAException refused) { check(refused.errorCode < 0, "code"); }
        check(recovered(resource, xid), "it is no longer among the prepared");
        resource.commit(xid, false);
        left(List.of("x"));
    }

    @Case public void binaryIds() throws Exception {
        byte[] global = new byte[64], branch = new byte[64];
        for (int i = 0; i < 64; i++) { global[i] = (byte) (i * 5); branch[i] = (byte) (255 - i); }
        byte[] own = id.getBytes(StandardCharsets.UTF_8);
        System.arraycopy(own, 0, global, 0, Math.min(own.length, 40));
        Id xid = new Id(-5, global, branch);
        XASession session = xa();
        session.getXAResource().start(xid, XAResource.TMNOFLAGS);
        send(session, queue(session), "x");
        session.getXAResource().end(xid, XAResource.TMSUCCESS);
        session.getXAResource().prepare(xid);
        closeAll(session);
        XAResource other = xa().getXAResource();
        check(recovered(other, xid), "it is not among the prepared");
        other.commit(xid, false);
        left(List.of("x"));
    }

    @Case public void secondSessionOfTheConnection() throws Exception {
        ActiveMQXAConnection connection =
            closing((ActiveMQXAConnection) new ActiveMQXAConnectionFactory(url()).createXAConnection());
        connection.start();
        XASession one = connection.createXASession(), two = connection.createXASession();
        Id a = xid("a"), b = xid("b");
        one.getXAResource().start(a, XAResource.TMNOFLAGS);
        two.getXAResource().start(b, XAResource.TMNOFLAGS);
        send(one, queue(one), "a");
        send(two, queue(two), "b");
        one.getXAResource().end(a, XAResource.TMSUCCESS);
        two.getXAResource().end(b, XAResource.TMSUCCESS);
        one.getXAResource().rollback(a);
        two.getXAResource().commit(b, true);
        left(List.of("b"));
    }

    @Case public void durableSubscriber() throws Exception {
        ActiveMQXAConnection connection =
            closing((ActiveMQXAConnection) new ActiveMQXAConnectionFactory(url()).createXAConnection());
        connection.setClientID(id);
        connection.start();
        XASession session = connection.createXASession();
        TopicSubscriber subscriber = session.createDurableSubscriber(topic(session), "s");
        Session sender = auto();
        count(sender, topic(sender), 2);
        Id xid = xid("1");
        session.getXAResource().start(xid, XAResource.TMNOFLAGS);
        nextText(subscriber);
        session.getXAResource().end(xid, XAResource.TMSUCCESS);
        session.getXAResource().prepare(xid);
        session.getXAResource().commit(xid, false);
        connection.close();
        Session plain = connectAs(id).createSession(false, AUTO);
        comes(List.of("1"), plain.createDurableSubscriber(topic(plain), "s"));
    }

    @Case(differs = "our broker confirms again what is done: the first answer may have been lost")
    public void committedAgain() throws Exception {
        Id xid = prepared("1");
        XAResource resource = xa().getXAResource();
        resource.commit(xid, false);
        resource.commit(xid, false);
        left(List.of("x"));
    }

    /** It is refused, and nothing of it takes place. */
    private void notPrepared(Destination to, int mode, MessageConsumer consumer) throws Exception {
        XASession session = xa();
        XAResource resource = session.getXAResource();
        Id xid = xid("1");
        resource.start(xid, XAResource.TMNOFLAGS);
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryMode(mode);
        producer.send(session.createTextMessage("x"));
        resource.end(xid, XAResource.TMSUCCESS);
        fails(XAException.XAER_PROTO, () -> resource.prepare(xid));
        check(!recovered(resource, xid), "it is among the prepared");
        nothing(consumer);
    }

    @Case(differs = "our broker prepares only what survives a takeover")
    public void preparedToATopic() throws Exception {
        Session listener = auto();
        notPrepared(topic(listener), DeliveryMode.PERSISTENT, listener.createConsumer(topic(listener)));
    }

    @Case(differs = "our broker prepares only what survives a takeover")
    public void preparedToADurableSubscriber() throws Exception {
        Session listener = connectAs(id).createSession(false, AUTO);
        notPrepared(topic(listener), DeliveryMode.PERSISTENT, listener.createDurableSubscriber(topic(listener), "d"));
    }

    @Case(differs = "our broker prepares only what survives a takeover")
    public void preparedNotPersistent() throws Exception {
        Session listener = auto();
        notPrepared(queue(listener), DeliveryMode.NON_PERSISTENT, listener.createConsumer(queue(listener)));
    }
}
