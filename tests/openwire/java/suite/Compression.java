package suite;

import java.util.ArrayList;
import java.util.List;
import javax.jms.*;
import org.apache.activemq.command.ActiveMQMessage;

/** Bodies that the client compresses, read by clients that do and do not compress. */
public final class Compression extends Theme {
    private Session compressing;

    private Session start() throws JMSException {
        compressing = session(AUTO, "jms.useCompression=true");
        return compressing;
    }

    private <T extends Message> T through(T message) throws JMSException {
        compressing.createProducer(queue(compressing)).send(message);
        Session other = auto();
        @SuppressWarnings("unchecked") T got = (T) next(other.createConsumer(queue(other)), message.getClass());
        return got;
    }

    @Case public void text() throws Exception {
        String sent = "again and again ".repeat(1000);
        TextMessage got = through(start().createTextMessage(sent));
        check(((ActiveMQMessage) got).isCompressed(), "it is not compressed");
        equal(sent, got.getText());
    }

    @Case public void textWithEmoji() throws Exception {
        equal("😀\u0000ü".repeat(99), through(start().createTextMessage("😀\u0000ü".repeat(99))).getText());
    }

    @Case public void textEmpty() throws Exception { equal("", through(start().createTextMessage("")).getText()); }

    @Case public void textNull() throws Exception { equal(null, through(start().createTextMessage()).getText()); }

    @Case public void bytes() throws Exception {
        BytesMessage message = start().createBytesMessage();
        message.writeBytes(new byte[10_000]);
        message.writeInt(5);
        BytesMessage got = through(message);
        equal(10_004L, got.getBodyLength());
        equal(10_000, got.readBytes(new byte[10_000]));
        equal(5, got.readInt());
    }

    @Case public void map() throws Exception {
        MapMessage message = start().createMapMessage();
        message.setString("text", "y".repeat(5000));
        message.setInt("number", 3);
        MapMessage got = through(message);
        equal("y".repeat(5000), got.getString("text"));
        equal(3, got.getInt("number"));
    }

    @Case public void stream() throws Exception {
        StreamMessage message = start().createStreamMessage();
        message.writeString("z".repeat(5000));
        message.writeDouble(1.5);
        StreamMessage got = through(message);
        equal("z".repeat(5000), got.readString());
        equal(1.5, got.readDouble());
    }

    @Case public void object() throws Exception {
        ArrayList<String> list = new ArrayList<>(java.util.Collections.nCopies(1000, "same"));
        equal(list, through(start().createObjectMessage(list)).getObject());
    }

    @Case public void properties() throws Exception {
        TextMessage message = start().createTextMessage("w".repeat(2000));
        message.setIntProperty("number", 12);
        TextMessage got = through(message);
        equal(12, got.getIntProperty("number"));
    }

    @Case public void selected() throws Exception {
        Session session = start();
        TextMessage message = session.createTextMessage("v".repeat(2000));
        message.setIntProperty("number", 12);
        session.createProducer(queue(session)).send(message);
        nothing(session.createConsumer(queue(session), "number = 13"));
        equal("v".repeat(2000), nextText(session.createConsumer(queue(session), "number = 12")));
    }

    @Case public void browsed() throws Exception {
        Session session = start();
        send(session, queue(session), "u".repeat(3000));
        equal(List.of("u".repeat(3000)), browse(session, queue(session)));
    }

    @Case public void forwarded() throws Exception {
        TextMessage got = through(start().createTextMessage("t".repeat(3000)));
        Session session = auto();
        session.createProducer(queue(session, "next")).send(got);
        equal("t".repeat(3000), nextText(session.createConsumer(queue(session, "next"))));
    }
}
