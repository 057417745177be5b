import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets the counter by which a server that is not running numbers the children of a node, as if so many had been made. */
class Counter {
    public static void main(String[] args) throws Exception {
        File data = new File(args[0]);
        FileTxnSnapLog log = new FileTxnSnapLog(data, data);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        log.restore(tree, sessions, (header, record, digest) -> {});
        tree.getNode(args[1]).stat.setCversion(Integer.parseInt(args[2]));
        log.save(tree, sessions, true);
        log.close();
        System.exit(0);
    }
}
