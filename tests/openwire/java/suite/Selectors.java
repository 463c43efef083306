package suite;

import java.util.List;
import javax.jms.*;

/** Selectors over typed properties and header fields. */
public final class Selectors extends Theme {
    /** Five messages; those that the selector takes come, the rest does not. */
    private void takes(String selector, String... expected) throws JMSException {
        takes(selector, false, expected);
    }

    private void takes(String selector, boolean withPriorities, String... expected) throws JMSException {
        Session session = auto();
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 5; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("number", i);
            message.setLongProperty("big", 5_000_000_000L + i);
            message.setDoubleProperty("half", i + 0.5);
            message.setBooleanProperty("even", i % 2 == 0);
            message.setStringProperty("text", "t" + i);
            message.setStringProperty("digits", String.valueOf(i));
            message.setByteProperty("byte", (byte) i);
            message.setFloatProperty("float", i / 4f);
            if (i == 3) { message.setStringProperty("rare", "it's ü%"); }
            message.setJMSType(i < 2 ? "low" : "high");
            message.setJMSCorrelationID("c" + i);
            producer.send(message, DeliveryMode.PERSISTENT, withPriorities ? i : 4, 0);
        }
        comes(List.of(expected), session.createConsumer(queue(session), selector));
        equal(5 - expected.length, browse(session, queue(session)).size(), "left");
    }

    @Case public void replyTo() throws Exception {
        Session session = auto();
        TextMessage message = session.createTextMessage("x");
        message.setJMSReplyTo(session.createQueue("r"));
        session.createProducer(queue(session)).send(message);
        for (String no : List.of("JMSReplyTo = 'topic://r'", "JMSReplyTo <> 'queue://r'", "JMSXGroupSeq = 1")) {
            comes(List.of(), session.createConsumer(queue(session), no));
        }
        String both = "JMSReplyTo = 'queue://r' AND JMSXGroupSeq = 0";
        comes(List.of("x"), session.createConsumer(queue(session), both));
    }

    @Case public void integer() throws Exception { takes("number = 2", "2"); }
    @Case public void less() throws Exception { takes("number < 2", "0", "1"); }
    @Case public void greaterOrEqual() throws Exception { takes("number >= 3", "3", "4"); }
    @Case public void notEqual() throws Exception { takes("number <> 0", "1", "2", "3", "4"); }
    @Case public void longs() throws Exception { takes("big > 5000000002", "3", "4"); }
    @Case public void doubles() throws Exception { takes("half = 1.5", "1"); }
    @Case public void floats() throws Exception { takes("float = 0.25", "1"); }
    @Case public void bytes() throws Exception { takes("byte = 3", "3"); }
    @Case public void booleans() throws Exception { takes("even = TRUE", "0", "2", "4"); }
    @Case public void bareBoolean() throws Exception { takes("NOT even", "1", "3"); }
    @Case public void strings() throws Exception { takes("text = 't3'", "3"); }
    @Case public void stringIsNoNumber() throws Exception { takes("digits = 2"); }
    @Case public void numberIsNoString() throws Exception { takes("number = '2'"); }
    @Case public void quoteAndUnicode() throws Exception { takes("rare = 'it''s ü%'", "3"); }
    @Case public void isNull() throws Exception { takes("rare IS NULL", "0", "1", "2", "4"); }
    @Case public void isNotNull() throws Exception { takes("rare IS NOT NULL", "3"); }
    @Case public void unknownIsFalse() throws Exception { takes("rare = 'x' OR NOT (rare = 'x')", "3"); }
    @Case public void between() throws Exception { takes("number BETWEEN 1 AND 3", "1", "2", "3"); }
    @Case public void notBetween() throws Exception { takes("number NOT BETWEEN 1 AND 3", "0", "4"); }
    @Case public void in() throws Exception { takes("text IN ('t0', 't4', 'x')", "0", "4"); }
    @Case public void notIn() throws Exception { takes("text NOT IN ('t0', 't4')", "1", "2", "3"); }
    @Case public void like() throws Exception { takes("text LIKE 't_' AND text LIKE '%1'", "1"); }
    @Case public void likeEscape() throws Exception { takes("rare LIKE '%#%' ESCAPE '#'", "3"); }
    @Case public void notLike() throws Exception { takes("text NOT LIKE '%1'", "0", "2", "3", "4"); }
    @Case public void arithmetic() throws Exception { takes("number * 2 + 1 = 7 - 0", "3"); }
    @Case public void andOr() throws Exception { takes("even = TRUE AND number > 1 OR number = 1", "1", "2", "4"); }
    @Case public void parentheses() throws Exception { takes("even = TRUE AND (number > 3 OR number = 0)", "0", "4"); }
    @Case public void type() throws Exception { takes("JMSType = 'low'", "0", "1"); }
    @Case public void correlationId() throws Exception { takes("JMSCorrelationID = 'c2'", "2"); }
    @Case public void priority() throws Exception { takes("JMSPriority > 3", true, "4"); }
    @Case public void deliveryMode() throws Exception {
        Session session = auto();
        sendQuickly(session, queue(session), 2);
        send(session, queue(session), "kept");
        comes(List.of("kept"), session.createConsumer(queue(session), "JMSDeliveryMode = 'PERSISTENT'"));
        comes(numbers(0, 2), session.createConsumer(queue(session), "JMSDeliveryMode = 'NON_PERSISTENT'"));
    }
    @Case public void timestamp() throws Exception { takes("JMSTimestamp > 0", "0", "1", "2", "3", "4"); }
    @Case public void comparedProperties() throws Exception { takes("half > number", "0", "1", "2", "3", "4"); }
    @Case public void exponent() throws Exception { takes("number < 2E0", "0", "1"); }
    @Case public void empty() throws Exception { takes("", "0", "1", "2", "3", "4"); }

    @Case public void messageId() throws Exception {
        Session session = auto();
        TextMessage message = session.createTextMessage("x");
        MessageProducer producer = session.createProducer(queue(session));
        producer.send(session.createTextMessage("w"));
        producer.send(message);
        String selector = "JMSMessageID = '" + message.getJMSMessageID() + "'";
        equal("x", nextText(session.createConsumer(queue(session), selector)));
    }

    @Case public void groupId() throws Exception {
        Session session = auto();
        TextMessage message = session.createTextMessage("x");
        message.setStringProperty("JMSXGroupID", "g");
        session.createProducer(queue(session)).send(message);
        nothing(session.createConsumer(queue(session), "JMSXGroupID = 'h'"));
        equal("x", nextText(session.createConsumer(queue(session), "JMSXGroupID = 'g'")));
    }

    @Case public void onATopic() throws Exception {
        Session session = auto();
        MessageConsumer odd = session.createConsumer(topic(session), "number = 1");
        MessageConsumer all = session.createConsumer(topic(session));
        MessageProducer producer = session.createProducer(topic(session));
        for (int i = 0; i < 3; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setIntProperty("number", i);
            producer.send(message);
        }
        equal(List.of("0", "1", "2"), nextTexts(all, 3));
        comes(List.of("1"), odd);
    }

    @Case public void twoConsumersShare() throws Exception {
        Session session = auto();
        MessageConsumer a = session.createConsumer(queue(session), "kind = 'a'");
        MessageConsumer b = session.createConsumer(queue(session), "kind = 'b'");
        MessageProducer producer = session.createProducer(queue(session));
        for (int i = 0; i < 6; i++) {
            TextMessage message = session.createTextMessage(String.valueOf(i));
            message.setStringProperty("kind", i % 2 == 0 ? "a" : "b");
            producer.send(message);
        }
        equal(List.of("0", "2", "4"), nextTexts(a, 3));
        equal(List.of("1", "3", "5"), nextTexts(b, 3));
    }

    @Case public void behindOthers() throws Exception {
        Session session = auto();
        sendQuickly(session, queue(session), 150);
        TextMessage wanted = session.createTextMessage("wanted");
        wanted.setIntProperty("n", 1);
        session.createProducer(queue(session)).send(wanted);
        equal("wanted", nextText(session.createConsumer(queue(session), "n = 1")));
    }

    @Case public void invalid() throws Exception {
        Session session = auto();
        for (String bad : List.of("number =", "= 3", "a LIKE 3", "(a = 1", "a IN (1 2)", "a BETWEEN 1")) {
            fails(InvalidSelectorException.class, () -> session.createConsumer(queue(session), bad));
        }
        send(session, queue(session), "still here");
        equal("still here", nextText(session.createConsumer(queue(session))));
    }

    @Case public void invalidForABrowser() throws Exception {
        Session session = auto();
        fails(InvalidSelectorException.class, () -> session.createBrowser(queue(session), "x = ").getEnumeration());
    }

    @Case public void invalidForADurable() throws Exception {
        Session session = connectAs(id).createSession(false, AUTO);
        fails(InvalidSelectorException.class, () -> session.createDurableSubscriber(topic(session), "s", "x x", false));
        fails(InvalidDestinationException.class, () -> session.unsubscribe("s"));
    }

    @Case(differs = "our broker asks a selector once for each message, and keeps the answer")
    public void redelivered() throws Exception {
        Session session = auto();
        fails(InvalidSelectorException.class, () -> session.createConsumer(queue(session), "JMSRedelivered = FALSE"));
    }

    @Case public void convertedStrings() throws Exception {
        takes("convert_string_expressions:2 = digits", "2");
    }

    @Case public void convertedStringsInOrder() throws Exception {
        takes("convert_string_expressions:digits > 2 AND digits BETWEEN 1 AND 3", "3");
    }

    @Case public void convertedTexts() throws Exception {
        takes("convert_string_expressions:text > 2 OR digits = 1", "1");
    }
}
