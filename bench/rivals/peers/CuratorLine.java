import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Clients that hand Curator's mutex to each other: `SERVER PATH CLIENTS`, see consensus/peers.rs. */
public class CuratorLine {
    public static void main(String[] args) throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[2]); n++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 30000, 5000, new RetryNTimes(3, 100));
            client.start();
            client.blockUntilConnected();
            clients.add(client);
        }
        clients.get(0).createContainers(args[1]);
        System.out.println("ready");
        String[] words = new BufferedReader(new InputStreamReader(System.in)).readLine().split(" ");
        long until = System.nanoTime() + Long.parseLong(words[0]) * 1_000_000;
        long hold = Long.parseLong(words[1]);
        List<String> holds = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (CuratorFramework client : clients) {
            InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
            Thread thread = new Thread(() -> take(mutex, until, hold, holds));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        for (String line : holds) {
            System.out.println(line);
        }
        System.out.println("end");
        for (CuratorFramework client : clients) {
            client.close();
        }
    }

    private static void take(InterProcessMutex mutex, long until, long hold, List<String> holds) {
        try {
            while (System.nanoTime() < until) {
                mutex.acquire();
                long granted = System.nanoTime();
                Thread.sleep(hold / 1000, (int) (hold % 1000) * 1000);
                holds.add(granted + " " + System.nanoTime());
                mutex.release();
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }
}
