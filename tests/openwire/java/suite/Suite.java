package suite;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/**
 * Runs the cases against a broker and prints one JSON line for each.
 *
 * <pre>java suite.Suite --url URL [--only PATTERN]... [--threads N]   |   java suite.Suite --list [--only PATTERN]...</pre>
 *
 * URL may be several with semicolons between: the connections of a case use one after the other.
 * PATTERN is a regular expression that the whole name Theme.method matches. Cases share nothing: each has its own
 * destinations and client ids, so that they run beside each other and again on the same broker.
 */
public final class Suite {
    private static final List<Class<? extends Theme>> THEMES = List.of(
        Acknowledgements.class, Advisories.class, Bodies.class, Browsers.class, Compression.class,
        Connections.class, Durables.class, Expiry.class, Groups.class, Headers.class, Names.class,
        Producers.class, Properties.class, Pulls.class, Queues.class, Redelivery.class, Scheduling.class,
        Selectors.class, Sessions.class, Temporaries.class, Topics.class, Transactions.class, Xa.class);

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private Suite() {}

    private record Entry(Class<? extends Theme> theme, Method method) {
        String name() {
            return theme.getSimpleName() + "." + method.getName();
        }

        Case how() {
            return method.getAnnotation(Case.class);
        }
    }

    public static void main(String[] words) throws Exception {
        String url = null;
        boolean list = false;
        int threads = 1;
        List<Pattern> only = new ArrayList<>();
        for (int i = 0; i < words.length; i++) {
            switch (words[i]) {
                case "--url" -> url = words[++i];
                case "--only" -> only.add(Pattern.compile(words[++i]));
                case "--threads" -> threads = Integer.parseInt(words[++i]);
                case "--list" -> list = true;
                default -> usage("unknown option " + words[i]);
            }
        }
        List<Entry> entries = entries(only);
        if (list) {
            for (Entry entry : entries) {
                OUT.println("{\"case\": " + json(entry.name()) + ", \"limit\": " + entry.how().limit()
                    + ", \"differs\": " + json(entry.how().differs()) + "}");
            }
            return;
        }
        if (url == null) {
            usage("--url is missing");
        }
        boolean good = !entries.isEmpty();
        if (!good) {
            System.err.println("no case matches");
        }
        System.exit(runAll(entries, url, threads) && good ? 0 : 1);
    }

    private static void usage(String error) {
        System.err.println(error + "\nusage: Suite --url URL [--only PATTERN]... [--threads N] | Suite --list");
        System.exit(2);
    }

    private static List<Entry> entries(List<Pattern> only) {
        List<Entry> entries = new ArrayList<>();
        for (Class<? extends Theme> theme : THEMES) {
            Arrays.stream(theme.getDeclaredMethods()).filter(method -> method.isAnnotationPresent(Case.class))
                .sorted(Comparator.comparing(Method::getName)).map(method -> new Entry(theme, method))
                .filter(entry -> only.isEmpty() || only.stream().anyMatch(p -> p.matcher(entry.name()).matches()))
                .forEach(entries::add);
        }
        return entries;
    }

    private static boolean runAll(List<Entry> entries, String url, int threads) throws InterruptedException {
        ConcurrentLinkedQueue<Entry> waiting = new ConcurrentLinkedQueue<>(entries);
        List<Entry> failed = java.util.Collections.synchronizedList(new ArrayList<>());
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread worker = new Thread(() -> {
                for (Entry entry = waiting.poll(); entry != null; entry = waiting.poll()) {
                    if (!run(entry, url)) {
                        failed.add(entry);
                    }
                }
            }, "worker " + i);
            worker.start();
            workers.add(worker);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        return failed.isEmpty();
    }

    private static boolean run(Entry entry, String url) {
        long began = System.nanoTime();
        Throwable[] failure = new Throwable[1];
        Thread thread = new Thread(() -> {
            try {
                once(entry, url);
            } catch (Throwable problem) {
                failure[0] = problem;
            }
        }, entry.name());
        thread.setDaemon(true);
        thread.start();
        String detail = "";
        try {
            thread.join(TimeUnit.SECONDS.toMillis(entry.how().limit()));
            if (thread.isAlive()) {
                detail = "not done within " + entry.how().limit() + " s; it stood at\n" + stack(thread);
                thread.interrupt();
                thread.join(2000);
            } else if (failure[0] != null) {
                StringWriter text = new StringWriter();
                failure[0].printStackTrace(new PrintWriter(text));
                detail = text.toString();
            }
        } catch (InterruptedException problem) {
            detail = problem.toString();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        OUT.println("{\"case\": " + json(entry.name()) + ", \"ok\": " + detail.isEmpty() + ", \"seconds\": "
            + String.format(java.util.Locale.ROOT, "%.3f", seconds) + ", \"detail\": " + json(detail) + "}");
        return detail.isEmpty();
    }

    private static void once(Entry entry, String url) throws Throwable {
        Theme theme = entry.theme().getDeclaredConstructor().newInstance();
        theme.prepare(url, entry.name());
        try {
            entry.method().invoke(theme);
        } catch (InvocationTargetException problem) {
            throw problem.getCause();
        } finally {
            theme.close();
        }
    }

    private static String stack(Thread thread) {
        StringBuilder text = new StringBuilder();
        for (StackTraceElement element : thread.getStackTrace()) {
            text.append("\tat ").append(element).append('\n');
        }
        return text.toString();
    }

    static String json(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
