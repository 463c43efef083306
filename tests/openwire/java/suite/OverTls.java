package suite;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.TextMessage;
import org.apache.activemq.ActiveMQConnectionFactory;

/**
 * One connection that is told line by line what to do, while the test kills the master beneath it: "send TEXT" answers
 * "sent", "receive" answers the text of a message, "end" ends. Words: URL, queue, and user and password where it has
 * them. Stores of keys are those of the JVM's options.
 */
public final class OverTls {
    private static final long RECEIVE_MS = 30_000;

    private OverTls() {
    }

    public static void main(String[] words) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1); // the threads of the client would go on
        });
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(words[0]);
        Connection connection = words.length == 2 ? factory.createConnection() : factory.createConnection(words[2], words[3]);
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(session.createQueue(words[1]));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        MessageConsumer consumer = null;
        System.out.println("connected");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = orders.readLine(); line != null && !line.equals("end"); line = orders.readLine()) {
            if (line.startsWith("send ")) {
                producer.send(session.createTextMessage(line.substring("send ".length())));
                System.out.println("sent");
                continue;
            }
            if (consumer == null) {
                consumer = session.createConsumer(session.createQueue(words[1]));
            }
            TextMessage message = (TextMessage) consumer.receive(RECEIVE_MS);
            System.out.println(message == null ? "nothing" : message.getText());
        }
        connection.close();
    }
}
