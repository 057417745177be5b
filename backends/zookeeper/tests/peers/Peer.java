import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryNTimes;

/**
 * Curator's locks, by commands on stdin: `KIND PATH MILLISECONDS` takes, `free KIND PATH` gives back. The kind `permit/N` is
 * a lease of a semaphore of N. `crowd permit/N PATH ROUNDS FOLDER` takes and gives back, and answers how many holders it met
 * at most: each has a file in the folder for as long as it holds.
 */
public class Peer {
    private static final Map<String, InterProcessReadWriteLock> PAIRS = new HashMap<>();
    private static final Map<String, InterProcessLock> LOCKS = new HashMap<>();
    private static final Map<String, InterProcessSemaphoreV2> SEMAPHORES = new HashMap<>();
    private static final Map<String, Deque<Lease>> LEASES = new HashMap<>();

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], session, 5000, new RetryNTimes(3, 100));
        client.start();
        client.blockUntilConnected();
        say("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            if (words[0].equals("crowd")) {
                say(String.valueOf(crowd(semaphore(client, words[1], words[2]), Integer.parseInt(words[3]), words[4])));
            } else if (words[0].equals("free") && words[1].startsWith("permit/")) {
                semaphore(client, words[1], words[2]).returnLease(leases(words[1], words[2]).pop());
                say("free");
            } else if (words[0].equals("free")) {
                lock(client, words[1], words[2]).release();
                say("free");
            } else if (words[0].startsWith("permit/")) {
                Lease lease = semaphore(client, words[0], words[1]).acquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
                if (lease != null) {
                    leases(words[0], words[1]).push(lease);
                }
                say(lease != null ? "held" : "busy");
            } else {
                boolean held = lock(client, words[0], words[1]).acquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
                say(held ? "held" : "busy");
            }
        }
        client.close();
    }

    private static long crowd(InterProcessSemaphoreV2 semaphore, int rounds, String folder) throws Exception {
        long most = 0;
        for (int round = 0; round < rounds; round++) {
            Lease lease = semaphore.acquire();
            Path file = Files.createFile(Path.of(folder, UUID.randomUUID().toString()));
            Thread.sleep(10);
            try (Stream<Path> inside = Files.list(Path.of(folder))) {
                most = Math.max(most, inside.count());
            }
            Files.delete(file);
            semaphore.returnLease(lease);
        }
        return most;
    }

    private static InterProcessSemaphoreV2 semaphore(CuratorFramework client, String kind, String path) {
        int permits = Integer.parseInt(kind.substring("permit/".length()));
        return SEMAPHORES.computeIfAbsent(kind + path, unused -> new InterProcessSemaphoreV2(client, path, permits));
    }

    private static Deque<Lease> leases(String kind, String path) {
        return LEASES.computeIfAbsent(kind + path, unused -> new ArrayDeque<>());
    }

    private static InterProcessLock lock(CuratorFramework client, String kind, String path) {
        return LOCKS.computeIfAbsent(kind + path, unused -> {
            if (kind.equals("mutex")) {
                return new InterProcessMutex(client, path);
            }
            InterProcessReadWriteLock pair =
                    PAIRS.computeIfAbsent(path, known -> new InterProcessReadWriteLock(client, known));
            return kind.equals("read") ? pair.readLock() : pair.writeLock();
        });
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }
}
