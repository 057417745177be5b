import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/** Curator's locks, by commands on stdin: `KIND PATH MILLISECONDS` takes, `free KIND PATH` gives back. */
public class Peer {
    private static final Map<String, InterProcessReadWriteLock> PAIRS = new HashMap<>();
    private static final Map<String, InterProcessLock> LOCKS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], session, 5000, new RetryNTimes(3, 100));
        client.start();
        client.blockUntilConnected();
        say("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            if (words[0].equals("free")) {
                lock(client, words[1], words[2]).release();
                say("free");
            } else {
                boolean held = lock(client, words[0], words[1]).acquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
                say(held ? "held" : "busy");
            }
        }
        client.close();
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
