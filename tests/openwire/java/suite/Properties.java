package suite;

import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import javax.jms.*;
import org.apache.activemq.command.ActiveMQMessage;

/** Typed properties and their conversions. */
public final class Properties extends Theme {
    private interface Setting {
        void on(Message message) throws JMSException;
    }

    private Message with(Setting setting) throws JMSException {
        Session session = auto();
        TextMessage message = session.createTextMessage("x");
        setting.on(message);
        session.createProducer(queue(session)).send(message);
        return next(session.createConsumer(queue(session)));
    }

    @Case public void allTypes() throws Exception {
        Message got = with(m -> {
            m.setBooleanProperty("boolean", true); m.setByteProperty("byte", (byte) -1);
            m.setShortProperty("short", (short) 2); m.setIntProperty("int", -3); m.setLongProperty("long", 1L << 40);
            m.setFloatProperty("float", 1.25f); m.setDoubleProperty("double", -0.5);
            m.setStringProperty("string", "ü"); m.setObjectProperty("object", 77L);
        });
        equal(true, got.getBooleanProperty("boolean")); equal((byte) -1, got.getByteProperty("byte"));
        equal((short) 2, got.getShortProperty("short")); equal(-3, got.getIntProperty("int"));
        equal(1L << 40, got.getLongProperty("long")); equal(1.25f, got.getFloatProperty("float"));
        equal(-0.5, got.getDoubleProperty("double")); equal("ü", got.getStringProperty("string"));
        equal(77L, got.getObjectProperty("object")); equal((byte) -1, got.getObjectProperty("byte"));
        equal((short) 2, got.getObjectProperty("short")); equal(1.25f, got.getObjectProperty("float"));
    }

    @Case public void stringConversions() throws Exception {
        Message got = with(m -> { m.setStringProperty("number", "7"); m.setStringProperty("truth", "true"); });
        equal(7, got.getIntProperty("number")); equal(7L, got.getLongProperty("number"));
        equal((byte) 7, got.getByteProperty("number")); equal(7.0, got.getDoubleProperty("number"));
        equal(true, got.getBooleanProperty("truth"));
    }

    @Case public void numberConversions() throws Exception {
        Message got = with(m -> { m.setByteProperty("b", (byte) 5); m.setFloatProperty("f", 2.5f); });
        equal(5L, got.getLongProperty("b")); equal("5", got.getStringProperty("b"));
        equal(2.5, got.getDoubleProperty("f"));
        fails(MessageFormatException.class, () -> got.getIntProperty("f"));
        fails(MessageFormatException.class, () -> got.getBooleanProperty("b"));
    }

    @Case public void unset() throws Exception {
        Message got = with(m -> { });
        equal(null, got.getStringProperty("no")); equal(null, got.getObjectProperty("no"));
        equal(false, got.getBooleanProperty("no")); check(!got.propertyExists("no"), "it exists");
        fails(NumberFormatException.class, () -> got.getIntProperty("no"));
    }

    @Case public void names() throws Exception {
        Message got = with(m -> { m.setIntProperty("a", 1); m.setStringProperty("b", "2"); });
        TreeSet<Object> names = new TreeSet<>(Collections.list((java.util.Enumeration<?>) got.getPropertyNames()));
        check(names.containsAll(List.of("a", "b")), "names: " + names);
        check(!names.contains("c"), "names: " + names);
        check(got.propertyExists("a"), "a does not exist");
    }

    @Case public void nullProperty() throws Exception {
        Message got = with(m -> { m.setStringProperty("nothing", null); m.setObjectProperty("none", null); });
        equal(null, got.getStringProperty("nothing"));
        equal(null, got.getObjectProperty("none"));
    }

    @Case public void emptyString() throws Exception {
        equal("", with(m -> m.setStringProperty("empty", "")).getStringProperty("empty"));
    }

    @Case public void unicodeNames() throws Exception {
        equal("wert", with(m -> m.setStringProperty("größe", "wert")).getStringProperty("größe"));
    }

    // Not tried: NUL and emoji in properties and maps. The client writes them as modified UTF-8 and reads UTF-8.

    @Case public void threeByteCharacters() throws Exception {
        equal("\u0800\uffee日", with(m -> m.setStringProperty("far", "\u0800\uffee日")).getStringProperty("far"));
    }

    @Case public void longValue() throws Exception {
        String value = "x".repeat(100_000);
        equal(value, with(m -> m.setStringProperty("long", value)).getStringProperty("long"));
    }

    @Case public void many() throws Exception {
        Message got = with(m -> {
            for (int i = 0; i < 300; i++) { m.setIntProperty("p" + i, i); }
        });
        for (int i = 0; i < 300; i++) { equal(i, got.getIntProperty("p" + i)); }
    }

    @Case public void extremes() throws Exception {
        Message got = with(m -> {
            m.setLongProperty("l", Long.MIN_VALUE); m.setDoubleProperty("nan", Double.NaN);
            m.setDoubleProperty("inf", Double.NEGATIVE_INFINITY); m.setFloatProperty("f", Float.MIN_VALUE);
            m.setByteProperty("b", Byte.MIN_VALUE);
        });
        equal(Long.MIN_VALUE, got.getLongProperty("l")); equal(Double.NaN, got.getDoubleProperty("nan"));
        equal(Double.NEGATIVE_INFINITY, got.getDoubleProperty("inf"));
        equal(Float.MIN_VALUE, got.getFloatProperty("f")); equal(Byte.MIN_VALUE, got.getByteProperty("b"));
    }

    @Case public void nestedCollections() throws Exception {
        Message got = with(m -> m.setObjectProperty("map", Map.of("k", List.of(1, "two"))));
        equal(Map.of("k", List.of(1, "two")), got.getObjectProperty("map"));
    }

    @Case public void readOnlyWhenReceived() throws Exception {
        Message got = with(m -> m.setIntProperty("a", 1));
        fails(MessageNotWriteableException.class, () -> got.setIntProperty("a", 2));
        got.clearProperties();
        got.setIntProperty("a", 3);
        equal(3, got.getIntProperty("a"));
    }

    @Case public void illegal() throws Exception {
        Session session = auto();
        Message message = session.createMessage();
        fails(IllegalArgumentException.class, () -> message.setStringProperty("", "x"));
        fails(MessageFormatException.class, () -> message.setObjectProperty("o", new Object()));
    }

    @Case public void groupAsFields() throws Exception {
        Message got = with(m -> { m.setStringProperty("JMSXGroupID", "g😀"); m.setIntProperty("JMSXGroupSeq", 4); });
        equal("g😀", got.getStringProperty("JMSXGroupID"));
        equal(4, got.getIntProperty("JMSXGroupSeq"));
        equal("g😀", ((ActiveMQMessage) got).getGroupID());
    }

    @Case public void userIdIsOffByDefault() throws Exception {
        equal(null, with(m -> { }).getStringProperty("JMSXUserID"));
    }

    @Case public void deliveryCountBeginsWithOne() throws Exception {
        equal(1, with(m -> { }).getIntProperty("JMSXDeliveryCount"));
    }

    @Case public void forwardedWithChanges() throws Exception {
        Message got = with(m -> m.setIntProperty("a", 1));
        Session session = auto();
        got.clearProperties();
        got.setIntProperty("b", 2);
        session.createProducer(queue(session, "next")).send(got);
        Message again = next(session.createConsumer(queue(session, "next")));
        check(!again.propertyExists("a"), "the old property came again");
        equal(2, again.getIntProperty("b"));
        equal("x", text(again));
    }
}
