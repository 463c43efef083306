package suite;

import java.util.concurrent.LinkedBlockingQueue;
import javax.jms.*;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.advisory.AdvisorySupport;
import org.apache.activemq.advisory.ConsumerEvent;
import org.apache.activemq.advisory.ConsumerEventSource;
import org.apache.activemq.advisory.DestinationSource;
import org.apache.activemq.advisory.ProducerEvent;
import org.apache.activemq.advisory.ProducerEventSource;
import org.apache.activemq.command.ActiveMQDestination;
import org.apache.activemq.command.ActiveMQMessage;
import org.apache.activemq.command.ActiveMQQueue;
import org.apache.activemq.command.ActiveMQTopic;
import org.apache.activemq.command.ConnectionInfo;
import org.apache.activemq.command.ConsumerInfo;
import org.apache.activemq.command.DataStructure;
import org.apache.activemq.command.DestinationInfo;
import org.apache.activemq.command.ProducerInfo;
import org.apache.activemq.command.RemoveInfo;

/** What the broker tells about itself on advisory topics. */
public final class Advisories extends Theme {
    /** The first advisory with such a structure that is about this case. */
    private static <T extends DataStructure> ActiveMQMessage find(MessageConsumer consumer, Class<T> kind, String about)
            throws JMSException {
        long until = System.currentTimeMillis() + SOON_MS;
        StringBuilder others = new StringBuilder();
        while (System.currentTimeMillis() < until) {
            ActiveMQMessage got = (ActiveMQMessage) consumer.receive(until - System.currentTimeMillis());
            if (got == null) { break; }
            equal("Advisory", got.getJMSType(), "type");
            if (kind.isInstance(got.getDataStructure()) && got.getDataStructure().toString().contains(about)) {
                return got;
            }
            others.append(got.getDataStructure()).append('\n');
        }
        throw new AssertionError("no " + kind.getSimpleName() + " about " + about + " but\n" + others);
    }

    @Case public void consumers() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching =
            session.createConsumer(AdvisorySupport.getConsumerAdvisoryTopic(new ActiveMQQueue(name())));
        MessageConsumer consumer = other.createConsumer(queue(other), "n = 7");
        ActiveMQMessage added = find(watching, ConsumerInfo.class, id);
        equal(1, added.getIntProperty("consumerCount"));
        equal("n = 7", ((ConsumerInfo) added.getDataStructure()).getSelector());
        consumer.close();
        ActiveMQMessage removed = find(watching, RemoveInfo.class, "");
        equal(0, removed.getIntProperty("consumerCount"));
    }

    @Case public void consumersThatAreThere() throws Exception {
        Session session = auto(), other = auto();
        other.createConsumer(queue(other), "n = 7");
        MessageConsumer watching =
            session.createConsumer(AdvisorySupport.getConsumerAdvisoryTopic(new ActiveMQQueue(name())));
        ActiveMQMessage added = find(watching, ConsumerInfo.class, id);
        equal("n = 7", ((ConsumerInfo) added.getDataStructure()).getSelector());
    }

    @Case public void producersThatAreThere() throws Exception {
        Session session = auto(), other = auto();
        other.createProducer(queue(other));
        MessageConsumer watching =
            session.createConsumer(AdvisorySupport.getProducerAdvisoryTopic(new ActiveMQQueue(name())));
        find(watching, ProducerInfo.class, id);
    }

    @Case public void producers() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching =
            session.createConsumer(AdvisorySupport.getProducerAdvisoryTopic(new ActiveMQQueue(name())));
        MessageProducer producer = other.createProducer(queue(other));
        equal(1, find(watching, ProducerInfo.class, id).getIntProperty("producerCount"));
        producer.close();
        find(watching, RemoveInfo.class, "");
    }

    @Case public void connections() throws Exception {
        Session session = auto();
        MessageConsumer watching = session.createConsumer(AdvisorySupport.getConnectionAdvisoryTopic());
        ActiveMQConnection connection = connectAs(id);
        find(watching, ConnectionInfo.class, id);
        String connectionId = connection.getConnectionInfo().getConnectionId().toString();
        connection.close();
        find(watching, RemoveInfo.class, connectionId);
    }

    @Case public void connectionsThatAreThere() throws Exception {
        connectAs(id);
        Session session = auto();
        find(session.createConsumer(AdvisorySupport.getConnectionAdvisoryTopic()), ConnectionInfo.class, id);
    }

    @Case public void queues() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching = session.createConsumer(session.createTopic("ActiveMQ.Advisory.Queue"));
        send(other, queue(other), "x");
        DestinationInfo info = (DestinationInfo) find(watching, DestinationInfo.class, id).getDataStructure();
        equal(new ActiveMQQueue(name()), info.getDestination());
        check(info.isAddOperation(), "no addition");
    }

    @Case public void topics() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching = session.createConsumer(session.createTopic("ActiveMQ.Advisory.Topic"));
        send(other, topic(other), "x");
        find(watching, DestinationInfo.class, id);
    }

    @Case public void topicsThatAreThere() throws Exception {
        Session session = auto(), other = auto();
        other.createConsumer(topic(other));
        find(session.createConsumer(session.createTopic("ActiveMQ.Advisory.Topic")), DestinationInfo.class, id);
    }

    @Case public void removedDestinations() throws Exception {
        Session session = auto();
        ActiveMQConnection connection = connect();
        Session other = connection.createSession(false, AUTO);
        MessageConsumer queues = session.createConsumer(session.createTopic("ActiveMQ.Advisory.Queue"));
        MessageConsumer topics = session.createConsumer(session.createTopic("ActiveMQ.Advisory.Topic"));
        send(other, queue(other), "x");
        send(other, topic(other), "x");
        find(queues, DestinationInfo.class, id);
        find(topics, DestinationInfo.class, id);
        connection.destroyDestination(new ActiveMQQueue(name()));
        connection.destroyDestination(new ActiveMQTopic(name()));
        for (MessageConsumer watching : new MessageConsumer[] {queues, topics}) {
            DestinationInfo removed = (DestinationInfo) find(watching, DestinationInfo.class, id).getDataStructure();
            check(removed.isRemoveOperation(), "no removal");
        }
    }

    @Case public void temporaryQueues() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching = session.createConsumer(session.createTopic("ActiveMQ.Advisory.TempQueue"));
        TemporaryQueue queue = other.createTemporaryQueue();
        String name = queue.getQueueName();
        DestinationInfo added = (DestinationInfo) find(watching, DestinationInfo.class, name).getDataStructure();
        check(added.isAddOperation(), "no addition");
        queue.delete();
        DestinationInfo removed = (DestinationInfo) find(watching, DestinationInfo.class, name).getDataStructure();
        check(removed.isRemoveOperation(), "no removal");
    }

    @Case public void temporaryTopicsThatAreThere() throws Exception {
        Session session = auto(), other = auto();
        String name = other.createTemporaryTopic().getTopicName();
        find(session.createConsumer(session.createTopic("ActiveMQ.Advisory.TempTopic")), DestinationInfo.class, name);
    }

    @Case public void consumerEventSource() throws Exception {
        ActiveMQConnection connection = connect();
        LinkedBlockingQueue<ConsumerEvent> events = new LinkedBlockingQueue<>();
        ConsumerEventSource source = new ConsumerEventSource(connection, new ActiveMQQueue(name()));
        source.setConsumerListener(events::add);
        source.start();
        Session other = auto();
        MessageConsumer consumer = other.createConsumer(queue(other));
        ConsumerEvent started = take(events);
        equal(true, started.isStarted());
        equal(1, started.getConsumerCount());
        consumer.close();
        ConsumerEvent stopped = take(events);
        equal(false, stopped.isStarted());
        equal(0, stopped.getConsumerCount());
        source.stop();
    }

    @Case public void producerEventSource() throws Exception {
        ActiveMQConnection connection = connect();
        LinkedBlockingQueue<ProducerEvent> events = new LinkedBlockingQueue<>();
        ProducerEventSource source = new ProducerEventSource(connection, new ActiveMQQueue(name()));
        source.setProducerListener(events::add);
        source.start();
        Session other = auto();
        MessageProducer producer = other.createProducer(queue(other));
        ProducerEvent started = take(events);
        equal(true, started.isStarted());
        equal(1, started.getProducerCount());
        producer.close();
        equal(false, take(events).isStarted());
        source.stop();
    }

    @Case public void destinationSource() throws Exception {
        Session session = auto();
        send(session, queue(session), "x");
        DestinationSource source = connect().getDestinationSource();
        eventually(() -> source.getQueues().contains(new ActiveMQQueue(name())), "the queue is not known");
        send(session, queue(session, "later"), "x");
        eventually(() -> source.getQueues().contains(new ActiveMQQueue(name() + ".later")), "the later one is not known");
    }

    @Case public void noAdvisoryOfAdvisories() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching = session.createConsumer(session.createTopic("ActiveMQ.Advisory.Consumer.>"));
        other.createConsumer(queue(other));
        ActiveMQMessage got = find(watching, ConsumerInfo.class, id);
        ActiveMQDestination of = ((ConsumerInfo) got.getDataStructure()).getDestination();
        equal(new ActiveMQQueue(name()), of);
    }

    @Case public void selectedByProperty() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching = session.createConsumer(
            AdvisorySupport.getConsumerAdvisoryTopic(new ActiveMQQueue(name())), "consumerCount > 1");
        other.createConsumer(queue(other));
        other.createConsumer(queue(other));
        equal(2, find(watching, ConsumerInfo.class, id).getIntProperty("consumerCount"));
    }

    @Case public void originBroker() throws Exception {
        Session session = auto(), other = auto();
        MessageConsumer watching =
            session.createConsumer(AdvisorySupport.getConsumerAdvisoryTopic(new ActiveMQQueue(name())));
        other.createConsumer(queue(other));
        ActiveMQMessage got = find(watching, ConsumerInfo.class, id);
        check(got.getStringProperty("originBrokerId") != null, "no originBrokerId");
        check(got.getStringProperty("originBrokerName") != null, "no originBrokerName");
        String url = got.getStringProperty("originBrokerURL");
        check(url != null && url.matches("tcp://.+:[0-9]+"), "not a URL: " + url);
    }
}
