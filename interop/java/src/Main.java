import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;

/**
 * Runs the checks against one broker, several at a time, and prints {@code ok NAME} or {@code FAILED NAME: why}.
 *
 * <p>Usage: {@code Main HOST:PORT PREFIX [PATTERN]}, where names of checks begin with PREFIX in the output. Called as
 * {@code Main worker ...} it is a process of its own that some check started and will kill.
 */
public final class Main {
    private static final int AT_ONCE = 6;
    private static final Duration PATIENCE = Duration.ofSeconds(90);

    public static void main(String[] words) throws Exception {
        if (words[0].equals("worker")) {
            Worker.main(words);
            return;
        }
        Pattern wanted = Pattern.compile(words.length > 2 ? words[2] : "");
        List<Check> checks = new ArrayList<>();
        all().stream().filter(check -> wanted.matcher(check.name()).find()).forEach(checks::add);
        boolean good = runAll(checks, words[0], words[1]);
        System.exit(good ? 0 : 1); // threads of a check that hangs would keep the process alive
    }

    private static List<Check> all() throws ReflectiveOperationException {
        List<Check> checks = new ArrayList<>();
        checks.addAll(Groups.checks());
        checks.addAll(Cooperative.checks());
        checks.addAll(Static.checks());
        checks.addAll(Commits.checks());
        checks.addAll(Consuming.checks());
        checks.addAll(Transactions.checks());
        checks.addAll(ExactlyOnce.checks());
        checks.addAll(AdminGroups.checks());
        checks.addAll(AdminTransactions.checks());
        checks.addAll(sinceRelease4());
        return checks;
    }

    /** The checks that need calls which older clients do not have; compiled only with newer ones. */
    @SuppressWarnings("unchecked")
    private static List<Check> sinceRelease4() throws ReflectiveOperationException {
        try {
            return (List<Check>) Class.forName("SinceRelease4").getDeclaredMethod("checks").invoke(null);
        } catch (ClassNotFoundException olderClient) {
            return List.of();
        }
    }

    private static boolean runAll(List<Check> checks, String bootstrap, String prefix) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE, Main::daemon);
        List<Future<Boolean>> outcomes = new ArrayList<>();
        for (Check check : checks) {
            outcomes.add(pool.submit(() -> passes(check, bootstrap, prefix)));
        }
        boolean good = true;
        for (Future<Boolean> outcome : outcomes) {
            good &= outcome.get();
        }
        return good;
    }

    private static boolean passes(Check check, String bootstrap, String prefix) {
        FutureTask<Void> attempt = new FutureTask<>(() -> tryOnce(check, bootstrap));
        Thread thread = daemon(attempt);
        thread.start();
        String why = "";
        try {
            attempt.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            why = "not done within " + PATIENCE.toSeconds() + " s" + place(thread.getStackTrace());
            thread.interrupt();
        } catch (Exception failure) {
            why = story(failure.getCause());
        }
        String name = prefix + check.name();
        System.out.println(why.isEmpty() ? "ok " + name : "FAILED " + name + ": " + why);
        return why.isEmpty();
    }

    private static Void tryOnce(Check check, String bootstrap) throws Exception {
        try (Bench bench = new Bench(bootstrap, check.name())) {
            check.body().run(bench);
        }
        return null;
    }

    /** One line: what was thrown, why, and where in these files. */
    static String story(Throwable failure) {
        StringBuilder line = new StringBuilder(failure.toString());
        for (Throwable cause = failure.getCause(); cause != null; cause = cause.getCause()) {
            line.append(" < ").append(cause);
        }
        return (line + place(failure.getStackTrace())).replaceAll("\\s+", " ");
    }

    /** Where in these files a thread is or was; nothing if it is in none. */
    private static String place(StackTraceElement[] stack) {
        for (StackTraceElement frame : stack) {
            if (!frame.getClassName().contains(".") && !frame.getClassName().equals("Bench")) {
                return " at " + frame.getFileName() + ":" + frame.getLineNumber();
            }
        }
        return "";
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }
}
