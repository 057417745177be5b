// Holds a lock while it works, and stops as soon as the lock is lost. Usage: java Holder.java NAME STEPS
import java.net.URI;
import java.net.http.*;
import java.util.UUID;
import java.util.regex.*;

public class Holder {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final String URL = System.getenv("LEASEHOLD_HTTP") + "/v1/holds/" + UUID.randomUUID();
    // On Linux nanoTime() stands still in a suspend. On a machine that sleeps, use the first number of /proc/uptime.
    static long validUntil;

    static HttpResponse<String> call(String method, String path, String body) throws Exception {
        long sent = System.nanoTime(); // before the request is sent: valid_ms counts from here
        var request = HttpRequest.newBuilder(URI.create(URL + path)).version(HttpClient.Version.HTTP_1_1)
            .header("Authorization", "Bearer " + System.getenv("LEASEHOLD_TOKEN"))
            .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        Matcher valid = Pattern.compile("\"valid_ms\":(\\d+)").matcher(answer.body());
        if (answer.statusCode() == 200 && valid.find()) validUntil = sent + Long.parseLong(valid.group(1)) * 1_000_000;
        return answer;
    }

    static void lost(String why) {
        System.out.println("lost: " + why);
        System.exit(76);
    }

    public static void main(String[] args) throws Exception {
        var grant = call("PUT", "?wait=60s", "{\"name\":\"" + args[0] + "\",\"ttl\":\"15s\"}");
        if (grant.statusCode() != 200) throw new RuntimeException(grant.body());
        System.out.println("granted " + grant.body());
        for (int step = 0; step < Integer.parseInt(args[1]); step++) {
            if (step % 100 == 99) { // once in a third of the ttl
                try {
                    var answer = call("POST", "/renew", "");
                    if (answer.statusCode() == 404 || answer.statusCode() == 410) lost(answer.body());
                } catch (java.io.IOException error) { } // the server may come back in time
            }
            if (System.nanoTime() - validUntil >= 0) lost("not renewed in time");
            Thread.sleep(50); // the work; give the fence to whatever it writes to
        }
        call("DELETE", "", "");
        System.out.println("released");
    }
}
