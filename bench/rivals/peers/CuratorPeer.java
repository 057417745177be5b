import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Curator's mutex: `KIND AT TASKS LOCKS`, a thread for each task; see bench/peer. */
public class CuratorPeer {
    private static final List<String> holds = Collections.synchronizedList(new ArrayList<>());

    public static void main(String[] args) throws Exception {
        String server = args[1].replaceAll("^[a-z]+://", "");
        int tasks = Integer.parseInt(args[2]), locks = Integer.parseInt(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(server, 30000, 5000, new RetryNTimes(3, 100));
        client.start();
        client.blockUntilConnected();
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            mutexes.add(new InterProcessMutex(client, "/bench-" + args[0] + "-" + task % locks));
            mutexes.get(task).acquire();
            mutexes.get(task).release();
        }
        // Beside the jar is a link with the version in its name.
        Path jar = Path.of(InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        String version = "";
        for (String name : jar.getParent().toFile().list()) {
            if (name.startsWith("curator-recipes-")) {
                version = name.substring("curator-recipes-".length(), name.length() - ".jar".length());
            }
        }
        System.out.println("ready " + version);
        ExecutorService pool = Executors.newFixedThreadPool(tasks);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("cycle")) {
                long began = System.nanoTime(), cpu = cpu(), hold = Long.parseLong(words[2]);
                long end = began + Long.parseLong(words[1]) * 1_000_000;
                List<Callable<Long>> work = new ArrayList<>();
                mutexes.forEach(mutex -> work.add(() -> repeat(mutex, end, hold)));
                List<String> cycles = new ArrayList<>();
                for (Future<Long> done : pool.invokeAll(work)) {
                    cycles.add(done.get().toString());
                }
                System.out.println((System.nanoTime() - began) / 1e9 + " " + (cpu() - cpu) / 1e9 + " "
                    + String.join(",", cycles) + " " + (hold > 0 ? String.join(",", holds) : "-"));
                holds.clear();
            } else if (words[0].equals("hold")) {
                mutexes.get(0).acquire();
                System.out.println("held");
            } else {
                mutexes.forEach(mutex -> pool.submit(() -> { mutex.acquire(); return null; }));
                System.out.println("waiting");
            }
        }
        System.exit(0);
    }

    private static long repeat(InterProcessMutex mutex, long end, long hold) throws Exception {
        long cycles = 0;
        while (System.nanoTime() < end) {
            mutex.acquire();
            if (hold > 0) {
                long granted = System.nanoTime();
                Thread.sleep(hold / 1000, (int) (hold % 1000) * 1000);
                holds.add(granted + ":" + System.nanoTime());
            }
            mutex.release();
            cycles++;
        }
        return cycles;
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
