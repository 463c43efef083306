package suite;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import javax.jms.*;

/** The five kinds of messages and the plain one: what is sent is what comes. */
public final class Bodies extends Theme {
    private interface Filling<T> {
        void fill(T message) throws JMSException;
    }

    private <T extends Message> T through(Session session, T message) throws JMSException {
        MessageProducer producer = session.createProducer(queue(session));
        producer.send(message);
        producer.close();
        MessageConsumer consumer = session.createConsumer(queue(session));
        @SuppressWarnings("unchecked") T got = (T) next(consumer, message.getClass());
        consumer.close();
        return got;
    }

    private void textIs(String text) throws JMSException {
        Session session = auto();
        equal(text, through(session, session.createTextMessage(text)).getText());
    }

    private BytesMessage bytes(Filling<BytesMessage> filling) throws JMSException {
        Session session = auto();
        BytesMessage message = session.createBytesMessage();
        filling.fill(message);
        return through(session, message);
    }

    private MapMessage map(Filling<MapMessage> filling) throws JMSException {
        Session session = auto();
        MapMessage message = session.createMapMessage();
        filling.fill(message);
        return through(session, message);
    }

    private StreamMessage stream(Filling<StreamMessage> filling) throws JMSException {
        Session session = auto();
        StreamMessage message = session.createStreamMessage();
        filling.fill(message);
        return through(session, message);
    }

    private static byte[] noise(int length) {
        byte[] noise = new byte[length];
        new Random(length).nextBytes(noise);
        return noise;
    }

    @Case public void textPlain() throws Exception { textIs("a text"); }
    @Case public void textEmpty() throws Exception { textIs(""); }
    @Case public void textNull() throws Exception { textIs(null); }
    @Case public void textUnicode() throws Exception { textIs("äöü € 日本語 \u05d0"); }
    @Case public void textEmoji() throws Exception { textIs("smile 😀 and 👩‍👩‍👧"); }
    @Case public void textNul() throws Exception { textIs("a\u0000b\u0000"); }
    @Case public void textLoneSurrogate() throws Exception { textIs("x\ud83dy"); }
    @Case public void textBeyond65535() throws Exception { textIs("ä".repeat(70_000)); }
    @Case public void textTwoMegabytes() throws Exception { textIs("0123456789abcdef".repeat(131_072)); }

    @Case public void textReadOnlyWhenReceived() throws Exception {
        Session session = auto();
        TextMessage got = through(session, session.createTextMessage("x"));
        fails(MessageNotWriteableException.class, () -> got.setText("y"));
        got.clearBody();
        equal(null, got.getText());
        got.setText("y");
        equal("y", got.getText());
    }

    @Case public void plainMessage() throws Exception {
        Session session = auto();
        Message message = session.createMessage();
        message.setStringProperty("only", "properties");
        equal("properties", through(session, message).getStringProperty("only"));
    }

    @Case public void bytesAllTypes() throws Exception {
        BytesMessage got = bytes(m -> {
            m.writeBoolean(true); m.writeByte((byte) -2); m.writeShort((short) -300); m.writeChar('€');
            m.writeInt(-70_000); m.writeLong(Long.MIN_VALUE); m.writeFloat(1.5f); m.writeDouble(-2.25);
            m.writeUTF("ü😀"); m.writeBytes(new byte[] {1, 2, 3}); m.writeBytes(new byte[] {7, 8, 9}, 1, 1);
            m.writeObject(5);
        });
        equal(true, got.readBoolean()); equal((byte) -2, got.readByte()); equal((short) -300, got.readShort());
        equal('€', got.readChar()); equal(-70_000, got.readInt()); equal(Long.MIN_VALUE, got.readLong());
        equal(1.5f, got.readFloat()); equal(-2.25, got.readDouble()); equal("ü😀", got.readUTF());
        byte[] four = new byte[4];
        equal(4, got.readBytes(four));
        equal(new byte[] {1, 2, 3, 8}, four);
        equal(5, got.readInt());
        fails(MessageEOFException.class, got::readByte);
    }

    @Case public void bytesUnsigned() throws Exception {
        BytesMessage got = bytes(m -> { m.writeByte((byte) 200); m.writeShort((short) 60_000); });
        equal(200, got.readUnsignedByte());
        equal(60_000, got.readUnsignedShort());
    }

    @Case public void bytesEmpty() throws Exception {
        BytesMessage got = bytes(m -> { });
        equal(0L, got.getBodyLength());
        equal(-1, got.readBytes(new byte[3]));
    }

    @Case public void bytesTwoMegabytes() throws Exception {
        byte[] sent = noise(2_097_152);
        BytesMessage got = bytes(m -> m.writeBytes(sent));
        equal((long) sent.length, got.getBodyLength());
        byte[] read = new byte[sent.length];
        equal(sent.length, got.readBytes(read));
        check(Arrays.equals(sent, read), "other bytes came");
    }

    @Case public void bytesAllValues() throws Exception {
        byte[] sent = new byte[256];
        for (int i = 0; i < 256; i++) { sent[i] = (byte) i; }
        BytesMessage got = bytes(m -> m.writeBytes(sent));
        byte[] read = new byte[256];
        got.readBytes(read);
        equal(sent, read);
    }

    @Case public void bytesReset() throws Exception {
        BytesMessage got = bytes(m -> m.writeInt(7));
        equal(7, got.readInt());
        got.reset();
        equal(7, got.readInt());
        fails(MessageNotWriteableException.class, () -> got.writeInt(1));
    }

    @Case public void mapAllTypes() throws Exception {
        MapMessage got = map(m -> {
            m.setBoolean("boolean", true); m.setByte("byte", (byte) -1); m.setShort("short", (short) -300);
            m.setChar("char", 'ß'); m.setInt("int", 1 << 30); m.setLong("long", Long.MAX_VALUE);
            m.setFloat("float", 0.5f); m.setDouble("double", Math.PI); m.setString("string", "日本");
            m.setBytes("bytes", new byte[] {0, -1}); m.setObject("object", 9L);
        });
        equal(true, got.getBoolean("boolean")); equal((byte) -1, got.getByte("byte"));
        equal((short) -300, got.getShort("short")); equal('ß', got.getChar("char"));
        equal(1 << 30, got.getInt("int")); equal(Long.MAX_VALUE, got.getLong("long"));
        equal(0.5f, got.getFloat("float")); equal(Math.PI, got.getDouble("double"));
        equal("日本", got.getString("string")); equal(new byte[] {0, -1}, got.getBytes("bytes"));
        equal(9L, got.getObject("object"));
        equal(11, Collections.list(got.getMapNames()).size());
    }

    @Case public void mapEmpty() throws Exception {
        check(!map(m -> { }).getMapNames().hasMoreElements(), "names in an empty map");
    }

    @Case public void mapNull() throws Exception {
        MapMessage got = map(m -> m.setString("nothing", null));
        check(got.itemExists("nothing"), "the null is gone");
        equal(null, got.getString("nothing"));
        check(!got.itemExists("other"), "an item that nobody set");
    }

    @Case public void mapConversions() throws Exception {
        MapMessage got = map(m -> { m.setString("text", "7"); m.setInt("int", 8); m.setByte("byte", (byte) 9); });
        equal(7, got.getInt("text")); equal("8", got.getString("int")); equal(8L, got.getLong("int"));
        equal((short) 9, got.getShort("byte"));
        fails(MessageFormatException.class, () -> got.getByte("int"));
        fails(MessageFormatException.class, () -> got.getChar("int"));
    }

    @Case public void mapReadOnlyWhenReceived() throws Exception {
        MapMessage got = map(m -> m.setInt("a", 1));
        fails(MessageNotWriteableException.class, () -> got.setInt("a", 2));
    }

    @Case public void mapNested() throws Exception {
        MapMessage got = map(m -> {
            m.setObject("map", Map.of("list", List.of("a", 1, true), "deep", Map.of("x", 2.5)));
            m.setObject("list", new ArrayList<>(List.of("b", 3L)));
        });
        equal(Map.of("list", List.of("a", 1, true), "deep", Map.of("x", 2.5)), got.getObject("map"));
        equal(List.of("b", 3L), got.getObject("list"));
    }

    @Case public void mapLongString() throws Exception {
        String text = "é".repeat(50_000);
        equal(text, map(m -> m.setString("long", text)).getString("long"));
    }

    @Case public void streamAllTypes() throws Exception {
        StreamMessage got = stream(m -> {
            m.writeBoolean(false); m.writeByte((byte) 3); m.writeShort((short) 4); m.writeChar('c'); m.writeInt(5);
            m.writeLong(6); m.writeFloat(7.5f); m.writeDouble(8.5); m.writeString("nine 😀");
            m.writeBytes(new byte[] {10, 11}); m.writeObject(null);
        });
        equal(false, got.readBoolean()); equal((byte) 3, got.readByte()); equal((short) 4, got.readShort());
        equal('c', got.readChar()); equal(5, got.readInt()); equal(6L, got.readLong()); equal(7.5f, got.readFloat());
        equal(8.5, got.readDouble()); equal("nine 😀", got.readString());
        byte[] bytes = new byte[3];
        equal(2, got.readBytes(bytes));
        equal(-1, got.readBytes(bytes));
        equal(null, got.readObject());
        fails(MessageEOFException.class, got::readInt);
    }

    @Case public void streamAsObjects() throws Exception {
        StreamMessage got = stream(m -> { m.writeInt(1); m.writeString("2"); m.writeBytes(new byte[] {3}); });
        equal(1, got.readObject()); equal("2", got.readObject()); equal(new byte[] {3}, got.readObject());
    }

    @Case public void streamBadConversionKeepsItsPlace() throws Exception {
        StreamMessage got = stream(m -> m.writeString("no number"));
        fails(NumberFormatException.class, got::readInt);
        equal("no number", got.readString());
    }

    @Case public void streamEmpty() throws Exception {
        fails(MessageEOFException.class, stream(m -> { })::readObject);
    }

    @Case public void streamReset() throws Exception {
        StreamMessage got = stream(m -> m.writeLong(3));
        equal("3", got.readString());
        got.reset();
        equal(3L, got.readLong());
        fails(MessageNotWriteableException.class, () -> got.writeLong(1));
    }

    @Case public void objectList() throws Exception {
        Session session = auto();
        ArrayList<Object> list = new ArrayList<>(Arrays.asList("a", 1, 2L, null, 'c'));
        equal(list, through(session, session.createObjectMessage(list)).getObject());
    }

    @Case public void objectNull() throws Exception {
        Session session = auto();
        equal(null, through(session, session.createObjectMessage()).getObject());
    }

    @Case public void objectLarge() throws Exception {
        Session session = auto();
        byte[] sent = noise(500_000);
        equal(sent, through(session, session.createObjectMessage(sent)).getObject());
    }

    @Case public void objectIsACopy() throws Exception {
        Session session = auto();
        ArrayList<String> list = new ArrayList<>(List.of("before"));
        ObjectMessage message = session.createObjectMessage(list);
        list.add("after");
        equal(List.of("before"), through(session, message).getObject());
    }

    @Case public void nonPersistentKinds() throws Exception {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.send(session.createTextMessage("t"));
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeInt(4);
        producer.send(bytes);
        producer.send(session.createObjectMessage("o"));
        MessageConsumer consumer = session.createConsumer(queue(session));
        equal("t", nextText(consumer));
        equal(4, next(consumer, BytesMessage.class).readInt());
        equal("o", next(consumer, ObjectMessage.class).getObject());
    }
}
